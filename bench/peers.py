"""The peer with a Kafka source: PySpark 4.0.0, in an environment of its own, and Spark's connector
for it, because Maven's repository has no connector for the newest Spark.

``python -m bench.peers`` fetches both, below this interpreter's environment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers.jars import Jars, bring

_VERSION = "4.0.0"
_ENVIRONMENT = Path(sys.prefix) / f"pyspark-{_VERSION}"
PYTHON = str(_ENVIRONMENT / "bin" / "python")
"""The interpreter with that PySpark."""
_CONNECTOR = Jars("spark-kafka", (("org.apache.spark", "spark-sql-kafka-0-10_2.13", _VERSION),))


def jars() -> str:
    """The connector, as the setting ``spark.jars`` takes it."""
    if not (Path(PYTHON).exists() and _CONNECTOR.directory.exists()):
        raise FileNotFoundError(
            f"PySpark {_VERSION} and its connector for Kafka are not there\n"
            "  To fetch both, type: .venv/bin/python -m bench.peers"
        )
    return ",".join(sorted(map(str, _CONNECTOR.directory.iterdir())))


def fetched() -> None:
    """Bring what is not there yet."""
    if not Path(PYTHON).exists():
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--retries", "10", f"pyspark=={_VERSION}"], check=True)
    bring(_CONNECTOR)


if __name__ == "__main__":
    fetched()
