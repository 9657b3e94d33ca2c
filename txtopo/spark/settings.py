"""Reads the settings ``spark.txtopo.*`` from Spark's configuration, before there is a SparkContext.

A run must know where its state is before Spark starts, and ``txtopo config show`` starts no Spark
at all. So a local Spark's settings are read as Spark itself reads them: from
``PYSPARK_SUBMIT_ARGS``, else from ``spark-defaults.conf``.

Runs on: driver.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark

from txtopo import errors
from txtopo.config import sources

inherited: list[Any] = []
"""In a fork: the parent processes' connections to Spark."""
os.register_at_fork(after_in_child=lambda: inherited.append(pyspark.SparkContext._gateway))

_LINE = re.compile(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*")


def refuse_fork() -> None:
    """Refuse an inherited Spark: two processes on one connection would get each other's answers."""
    if pyspark.SparkContext._gateway is not None and pyspark.SparkContext._gateway in inherited:
        raise errors.SetupError(
            "this process is a fork of the process that started Spark, and cannot use that Spark\n"
            "  Start the process with multiprocessing.get_context('spawn'), or fork before Spark is started."
        )


def of_this_process() -> dict[str, str]:
    """The settings ``spark.txtopo.*`` from the active SparkContext, from ``spark-submit``, or for a
    local Spark that is yet to be started."""
    active = pyspark.SparkContext._active_spark_context
    if active is not None:
        return of_context(active)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started the JVM. Without a connection to the JVM, SparkConf is empty.
        pyspark.SparkContext._ensure_initialized()
        return ours(dict(pyspark.SparkConf().getAll()))
    return before_start(os.environ)


def of_context(context: pyspark.SparkContext) -> dict[str, str]:
    """The settings ``spark.txtopo.*`` in ``context``."""
    refuse_fork()
    return ours(dict(context.getConf().getAll()))


def before_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings ``spark.txtopo.*`` for a Spark that is started under ``environment``."""
    return ours(all_before_start(environment))


def all_before_start(environment: Mapping[str, str]) -> dict[str, str]:
    """All settings, ours or not, for a Spark that is started under ``environment``."""
    arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    defaults = (
        Path(environment.get("SPARK_CONF_DIR") or spark_home(environment) / "conf")
        / "spark-defaults.conf"
    )
    settings: dict[str, str] = {}
    file = next(
        (Path(value) for name, value in _options(arguments) if name == "--properties-file"),
        defaults,
    )
    if file.is_file():
        settings |= _properties(file)
    for name, value in _options(arguments):
        if name in ("--conf", "-c"):
            key, _, text = value.partition("=")
            settings[key] = text
        elif name == "--remote":
            settings["spark.remote"] = value
    return settings


def spark_home(environment: Mapping[str, str]) -> Path:
    """``SPARK_HOME`` in ``environment``, or else the Spark inside the installed pyspark."""
    return Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def ours(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings ``spark.txtopo.*`` among ``settings``."""
    return {key: value for key, value in settings.items() if key.startswith(sources.SPARK_PREFIX)}


def _options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """All ``--name value`` and ``--name=value``. A flag gets the next argument as its value, which
    does no harm."""
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if separator and name.startswith("--"):
            yield name, value
        elif index + 1 < len(arguments):
            yield argument, arguments[index + 1]


def _properties(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"Spark's settings in {file} cannot be read: {error}") from None
    matches = [match for line in lines if (match := _LINE.fullmatch(line)) is not None]
    return {match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in matches}
