"""Makes the Spark context with the settings that the data plane needs, or checks a given context.

A local context is made here. A context on a cluster comes from spark-submit or from the user. Such
a context must know the executors' files and memory before it is made, and Spark takes both from
spark-submit.

Runs on: driver. One context per process (Spark's own rule). Consecutive users with equal settings
share the context.

Invariants: a context made here has every setting in ``REQUIRED`` and ``WANTED``. A given context
has at least every setting in ``REQUIRED``. The driver's address is set to 127.0.0.1 for local
masters only: a cluster's executors must reach the driver.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JNetworkError
from pyspark import java_gateway

from txtopo import errors
from txtopo.engine import logged
from txtopo.spark import connect, half_started, jvm_output, sockets
from txtopo.spark import settings as spark_settings
from txtopo.state import java
from txtopo.topology import redaction

_HERE = Path(__file__).parent
LOGGING = _HERE / "log4j2.properties"
"""The logging configuration for a driver's JVM."""

DAEMON = "txtopo.spark.daemon"
"""The module that forks the workers, if they run the driver's interpreter."""

REQUIRED: dict[str, tuple[str, str]] = {
    "spark.speculation": ("false", "a second copy of a task would emit the batch twice"),
    "spark.stage.maxAttempts": (
        "1",
        "a stage that Spark computes again would mix two emissions of a batch",
    ),
    "spark.stage.maxConsecutiveAttempts": (
        "1",
        "a stage that Spark computes again would mix two emissions of a batch",
    ),
    "spark.task.maxFailures": (
        "1",
        "a task that Spark retries would run a bolt twice in one attempt",
    ),
}
"""Settings without which an attempt could mix two computations (R33). txtopo itself answers every
failure with a new attempt."""

WANTED: dict[str, str] = {
    # Factor 2 to 3 per job: a reused worker's loopback TCP socket waits about 40 ms for Nagle and
    # delayed ACK.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0s",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.python.task.killTimeout": "0ms",
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "60s",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "500ms",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.cleaner.referenceTracking.blocking": "false",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.dynamicAllocation.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "1000",
    "spark.ui.dagGraph.retainedRootRDDs": "200",
    "spark.ui.liveUpdate.period": "1s",
    "spark.scheduler.listenerbus.eventqueue.capacity": "100000",
    "spark.scheduler.dropTaskInfoAccumulablesOnTaskCompletion.enabled": "true",
    "spark.shuffle.checksum.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
}

LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"
"""The variable with options for the short JVM in which Spark's scripts compose the command line of
the driver's JVM."""
QUICK_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"
"""Options for a JVM that lives less than a second: it compiles little, and collects garbage in one
thread."""

_ADVISED = (
    "spark.python.unix.domain.socket.enabled",
    "spark.python.task.killTimeout",
    "spark.locality.wait",
)

_EXECUTORS_WAIT_S = 30.0
"""How long to wait for a cluster's first executor, as Spark does by default
(spark.scheduler.maxRegisteredResourcesWaitingTime)."""

_EXECUTORS_SETTLED_S = 1.0
"""After so long without a new executor, the present executors are taken to be all."""

_ours: tuple[dict[str, str], Any] | None = None
_jvm: tuple[jvm_output.PassedOn, Any] | None = None
"""The output of the JVM that was started here, and its process."""


def local_cores(master: str) -> int | None:
    """How many tasks a local master runs at once, or ``None`` if ``master`` is not local.

    :raises UsageError: ``master`` is local, and its numbers cannot be read.
    """
    if not master.startswith("local"):
        return None
    try:
        if master.startswith("local-cluster["):
            workers, cores, _ = master[len("local-cluster[") : -1].split(",")
            return int(workers) * int(cores)
        inside = master[len("local[") : -1].split(",")[0] if "[" in master else "1"
        return os.cpu_count() or 1 if inside == "*" else int(inside)
    except ValueError:
        cure = "Give local[N] or local[*]."
        raise errors.UsageError(
            f"--master {master!r} is no Spark master: it does not say how many cores there are\n  {cure}"
        ) from None


def our_settings(master: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every setting for a context made here. ``extra`` wins, except over settings that R33
    needs."""
    settings = {**WANTED, **{key: value for key, (value, _) in REQUIRED.items()}}
    settings["spark.scheduler.allocation.file"] = (_HERE / "fairscheduler.xml").as_uri()
    settings["spark.driver.extraJavaOptions"] = (
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -XX:+ExplicitGCInvokesConcurrent"
    )
    if local_cores(master) is not None:
        settings["spark.python.daemon.module"] = DAEMON
    if sockets.is_short_enough(sockets.directory()):
        settings["spark.python.unix.domain.socket.dir"] = str(sockets.directory())
    settings.update({key: str(value) for key, value in (extra or {}).items()})
    settings["spark.master"] = master
    refuse_unsafe(settings, "spark_conf")
    _refuse_local_retries(master)
    return settings


def refuse_unsafe(settings: Mapping[str, str], where: str) -> None:
    """Refuse ``settings`` that could break R33. A missing setting is taken to be right. ``where``
    names their source in the message."""
    wrong = [
        key
        for key, (value, _) in REQUIRED.items()
        if settings.get(key, value).strip().lower() != value
    ]
    if wrong:
        refused = "; ".join(f"{key}={settings[key]}, but {REQUIRED[key][1]}" for key in wrong)
        needed = [f"{key}={REQUIRED[key][0]}" for key in wrong]
        cure = f"Leave it out, or set {', '.join(needed)}.\n  For spark-submit: --conf {' --conf '.join(needed)}"
        raise errors.SetupError(f"{where} has {refused}\n  {cure}")


def _refuse_local_retries(master: str) -> None:
    if (
        master.startswith("local[")
        and "," in master
        and master[len("local[") : -1].split(",")[1].strip() != "1"
    ):
        raise errors.SetupError(
            f"the master {master} retries tasks, but {REQUIRED['spark.task.maxFailures'][1]}\n  Give --master {master.split(',')[0]}]."
        )


def require_local(master: str) -> None:
    """Refuse to make a context on a cluster."""
    if local_cores(master) is None:
        raise errors.SetupError(
            f"{redaction.redacted(master)} is a cluster, whose executors must be given the code first\n"
            f"  Type `txtopo submit TARGET --master {redaction.redacted(master)}`, or give the program to spark-submit."
        )


def spark_context(master: str, extra: Mapping[str, str] | None = None) -> Any:
    """The process's Spark context on this machine, made with our settings. An earlier context made
    here is reused if its settings are equal, else replaced."""
    global _ours
    java.require_java()
    java.require_user()
    if pyspark.SparkContext._active_spark_context is None:
        require_local(master)
    settings = our_settings(master, extra)
    active = pyspark.SparkContext._active_spark_context
    if _ours is not None and active is _ours[1]:
        if _ours[0] == settings:
            return _ours[1]
        active.stop()
    elif active is not None:
        check_context(active)
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for text in replaced(spark_settings.all_before_start(os.environ)):
        warnings.warn(text, stacklevel=2)
    logged.LOGGER.info("starting Spark with master %s", master)
    if _jvm is not None:
        _jvm[0].is_muted = False
    conf = pyspark.SparkConf().setAppName("txtopo").setAll(list(settings.items()))
    try:
        with warnings.catch_warnings(), half_started.ended_if_interrupted():
            warnings.simplefilter("ignore")
            context = pyspark.SparkContext(conf=conf, gateway=_gateway(conf))
    except Exception as error:
        said = [
            line
            for line in str(error).splitlines()
            if line.strip() and not line.lstrip().startswith("at ")
        ]
        raise errors.SetupError("Spark did not start:\n  " + "\n  ".join(said[:5])) from error
    _ours = (settings, context)
    atexit.register(stop_ours)
    return context


def _gateway(conf: pyspark.SparkConf) -> Any | None:
    """Start a JVM whose standard error is passed on, and return the connection to it, or ``None``
    if there is a JVM already."""
    if pyspark.SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    os.environ.setdefault(LAUNCHER_OPTIONS, QUICK_LAUNCHER)
    global _jvm
    output = jvm_output.PassedOn()
    with output as stderr:
        gateway = java_gateway.launch_gateway(conf, {"stderr": stderr})
    _jvm = output, gateway.proc

    def finish() -> None:
        # A dead JVM's last lines are passed on before this program ends.
        if gateway.proc.poll() is not None:
            output.finish()

    atexit.register(finish)
    return gateway


def replaced(configuration: Mapping[str, str]) -> list[str]:
    """A text for each setting in Spark's own ``configuration`` that R33 replaces."""
    return [
        f"Spark's own configuration has {key}={configuration[key]}, but {value} is used here: {why}"
        for key, (value, why) in REQUIRED.items()
        if configuration.get(key, value).strip().lower() != value
    ]


def stop_ours() -> None:
    """Stop the context that was made here, if there is one."""
    global _ours
    if _ours is not None and pyspark.SparkContext._gateway not in spark_settings.inherited:
        _, context = _ours
        _ours = None
        if pyspark.SparkContext._active_spark_context is context:
            if _jvm is not None:
                # A JVM that has died says why.
                output, process = _jvm
                output.is_muted = process.poll() is None
            with contextlib.suppress(
                ConnectionError, Py4JNetworkError
            ):  # the JVM may have ended before
                context.stop()


def submitted_context() -> Any | None:
    """The context inside ``spark-submit``, or ``None`` outside. Settings that the user has not set
    are the data plane's."""
    if (
        "PYSPARK_GATEWAY_PORT" not in os.environ
        and pyspark.SparkContext._active_spark_context is None
    ):
        return None
    active = pyspark.SparkContext._active_spark_context
    if active is None:
        # Without a JVM, SparkConf would not know the settings given to spark-submit, and
        # setIfMissing would replace them.
        pyspark.SparkContext._ensure_initialized()
        conf = pyspark.SparkConf()
        connect.refuse_settings(dict(conf.getAll()))
        for key, (value, _) in REQUIRED.items():
            conf.setIfMissing(key, value)
        for key, value in WANTED.items():
            if not key.startswith(("spark.driver.", "spark.ui.enabled", "spark.dynamicAllocation")):
                conf.setIfMissing(key, value)
        if (_HERE / "fairscheduler.xml").is_file():
            # The driver reads this file. If the package was imported from a zip, there is no file,
            # and Spark gives all pools equal weight.
            conf.setIfMissing(
                "spark.scheduler.allocation.file", (_HERE / "fairscheduler.xml").as_uri()
            )
        if local_cores(conf.get("spark.master", "local[*]") or "") is None:
            # In a container the temporary directory's path may be longer than a socket's path can
            # be (108 bytes).
            conf.setIfMissing("spark.python.unix.domain.socket.dir", "/tmp")
        elif sockets.is_short_enough(sockets.directory()):
            conf.setIfMissing("spark.python.unix.domain.socket.dir", str(sockets.directory()))
        active = pyspark.SparkContext(conf=conf)
    check_context(active)
    return active


def check_context(context: Any) -> None:
    """Refuse a given context that could break R33. Warn about a slow context."""
    conf = dict(context.getConf().getAll())
    conf.setdefault("spark.speculation", "false")
    is_local = str(context.master).startswith("local[") or context.master == "local"
    defaults = {
        "spark.stage.maxAttempts": "2147483647",
        "spark.stage.maxConsecutiveAttempts": "4",
        "spark.task.maxFailures": "1" if is_local else "4",
    }
    refuse_unsafe({**defaults, **conf}, "the Spark session given")
    _refuse_local_retries(str(context.master))
    slow = [f"{key}={WANTED[key]}" for key in _ADVISED if conf.get(key, "").lower() != WANTED[key]]
    if slow:
        warnings.warn(
            f"the Spark session given works, but transactions are faster with {', '.join(slow)}",
            stacklevel=2,
        )


def cores_of(context: Any) -> int:
    """How many Python tasks run at once: a local master's cores, or the cores of a cluster's
    executors."""
    local = local_cores(str(context.master))
    if local is not None:
        return local
    _wait_for_executors(context)
    return max(
        1, int(context.defaultParallelism) // int(context.getConf().get("spark.task.cpus", "1"))
    )


def _wait_for_executors(context: Any) -> None:
    """Wait until executors have registered and no more come. Before that, Spark counts two cores,
    however many there will be."""
    began = changed = time.monotonic()
    count = 0
    while time.monotonic() - began < _EXECUTORS_WAIT_S and (
        count == 0 or time.monotonic() - changed < _EXECUTORS_SETTLED_S
    ):
        # The driver counts as one.
        now = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1
        if now != count:
            count, changed = now, time.monotonic()
        time.sleep(0.05)
    if count == 0:
        warnings.warn(
            f"no executor of {context.master} has registered within {_EXECUTORS_WAIT_S:.0f} s: the cluster has no cores or no memory free, or its "
            f"hosts do not reach the driver at {context.getConf().get('spark.driver.host')}. The run begins when an executor has registered",
            stacklevel=2,
        )
