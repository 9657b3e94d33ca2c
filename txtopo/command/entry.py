"""Starts the command ``txtopo``, also if a needed package is not installed.

Apart from ``cli`` because the import of ``cli`` already needs pyspark and kazoo.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from txtopo import errors

PACKAGES = {
    "cloudpickle": "cloudpickle",
    "kazoo": "kazoo",
    "py4j": "pyspark",
    "pydantic": "pydantic",
    "pyspark": "pyspark",
}
"""Modules that every run needs, each with its package."""


def main() -> int:
    """Run the command line, and return the exit code."""
    try:
        from txtopo.command import cli
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        return _report_missing(package, sys.argv[1:])
    return cli.main()


def _report_missing(package: str, arguments: list[str]) -> int:
    """Check the machine for ``txtopo doctor``, else say that ``package`` is missing."""
    if arguments[:1] == ["doctor"]:
        from txtopo.command import doctor

        parser = argparse.ArgumentParser(prog="txtopo doctor", description=doctor.DESCRIPTION)
        doctor.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="as JSON")
        parser.add_argument("-v", "--verbose", action="store_true", help=argparse.SUPPRESS)
        return doctor.run(parser.parse_args(arguments[1:]))
    cure = f"Type: {Path(sys.executable).name} -m pip install txtopo\n  Then `txtopo doctor` checks the rest."
    print(f"txtopo: error: the package {package} is not installed\n  {cure}", file=sys.stderr)
    return errors.SetupError.exit_code
