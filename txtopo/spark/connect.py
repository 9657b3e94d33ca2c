"""Refuses Spark Connect, which has no SparkContext: neither jobs, local properties nor broadcasts.

The refusal comes before ``session`` starts anything.

Runs on: driver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from txtopo import errors
from txtopo.spark import settings as spark_settings
from txtopo.topology import redaction

_CURE = "Unset SPARK_REMOTE, leave spark.api.mode at classic, and start with --master (local[2], spark://…, yarn, k8s://…)."


def refuse(master: str = "", settings: Mapping[str, str] | None = None) -> None:
    """Refuse Spark Connect as ``master``, in ``settings``, in Spark's own configuration, in the
    environment, and as the active session. Also refuse a Spark inherited from the process that
    forked this process."""
    spark_settings.refuse_fork()
    if master.lower().startswith("sc://"):
        raise _error(redaction.redacted(master))
    _refuse_environment(os.environ)
    refuse_settings({**spark_settings.all_before_start(os.environ), **(settings or {})})
    if "pyspark.sql" in sys.modules:
        from pyspark.sql import SparkSession

        active: Any = SparkSession.getActiveSession()
        if active is not None and "connect" in type(active).__module__:
            raise _error("the session there is")


def refuse_settings(settings: Mapping[str, str]) -> None:
    """Refuse Spark Connect in Spark's ``settings``."""
    for key, value in settings.items():
        is_connect = {
            "spark.remote": bool(value),
            "spark.api.mode": value.lower() == "connect",
            "spark.master": value.lower().startswith("sc://"),
        }
        if is_connect.get(key):
            raise _error(redaction.redacted(f"{key}={value}"))


def _refuse_environment(environment: Mapping[str, str]) -> None:
    is_connect = {
        "SPARK_REMOTE": bool(environment.get("SPARK_REMOTE")),
        "SPARK_API_MODE": environment.get("SPARK_API_MODE", "").lower() == "connect",
        # pyspark only asks whether the variable exists.
        "SPARK_CONNECT_MODE_ENABLED": "SPARK_CONNECT_MODE_ENABLED" in environment,
    }
    for name, asked in is_connect.items():
        if asked:
            raise _error(redaction.redacted(f"{name}={environment[name]}"))


def _error(source: str) -> errors.SetupError:
    fact = f"{source} is Spark Connect, which has no SparkContext; txtopo runs Spark jobs of its own and needs a classic session"
    return errors.SetupError(f"{fact}\n  {_CURE}")
