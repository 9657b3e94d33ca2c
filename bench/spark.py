"""The Spark of the peers: the settings of Spark's own that txtopo sets for speed, so that no ratio
is owed to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

PEER_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.locality.wait": "0s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.checksum.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
}


def peer_session(settings: Mapping[str, str], master: str = "local[2]") -> Any:
    """A Spark session with ``settings``, whose Python workers run our interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
