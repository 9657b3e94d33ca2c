"""Clusters for topologies: a local cluster with everything embedded, or the Spark context of
``spark-submit``.

Runs on: driver.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txtopo import config, errors
from txtopo.engine.status import RunStatus
from txtopo.runtime import progress as progress_line
from txtopo.runtime.run import TopologyRun
from txtopo.spark import connect, session, settings
from txtopo.state import directory
from txtopo.state.embedded import EmbeddedZooKeeper
from txtopo.topology.graph import TopologyGraph

_DIRECTORY_POLL_S = 0.1

STARTING = "starting Spark …"
"""A run's first line, because the start of Spark takes seconds."""

DEFAULT_DATA_DIR = directory.DEFAULT
"""Where the command line keeps the embedded ZooKeeper's data by default."""


class LocalCluster:
    """Local Spark with a real ZooKeeper of its own, or with the ZooKeeper at ``zookeeper`` (Storm:
    ``LocalCluster``).

    ``data_dir`` keeps ZooKeeper's state for the next cluster with the same directory. Without it
    the state goes with the cluster. ``spark_conf`` is added to the settings with which txtopo makes
    the session. Consecutive clusters with equal settings share the Spark session. ``progress`` says
    whether standard error shows how a run goes while the program waits for it. By default it does
    on a terminal.
    """

    def __init__(
        self,
        zookeeper: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        master: str = "local[2]",
        data_dir: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        progress_line.open_closed_streams()
        self._progress = (
            progress_line.ProgressLine(sys.stderr) if progress_line.should_show(progress) else None
        )
        self.runs: dict[str, TopologyRun] = {}
        """This cluster's runs, by name."""
        self._pid = os.getpid()
        self._reviving = threading.Lock()
        self._embedded: EmbeddedZooKeeper | None = None
        self._temporary: str | None = None
        connect.refuse(master, spark_conf)
        if self._progress is not None:
            self._progress.say(STARTING)
        try:
            if zookeeper is None:
                if data_dir is None:
                    data_dir = self._temporary = _temporary_directory()
                # Two JVMs start side by side: ZooKeeper's needs a fraction of Spark's time.
                self._embedded = EmbeddedZooKeeper(data_dir).launch()
            self._data_dir = data_dir
            self.context = session.spark_context(master, spark_conf)
            """The Spark context in use."""
            self.zookeeper = (
                zookeeper if self._embedded is None else self._embedded.wait_until_served().hosts
            )
            """``host:port[/chroot]`` of the ZooKeeper in use."""
        except BaseException:
            self.shutdown()
            raise
        self._end_with_the_process()

    def submit_topology(
        self, name: str, conf: config.Config | Mapping[str, Any], topology: TopologyGraph
    ) -> TopologyRun:
        """Start ``topology`` and return at once. ``name`` is the run's name. The state is kept
        under the topology's id.

        ``conf`` wins over Spark's configuration, the environment and a file
        (:func:`txtopo.config.resolve`). The cluster knows where ZooKeeper is.
        """
        running = self.runs.get(name)
        if running is not None and running.is_alive:
            raise errors.UsageError(
                f"a topology named {name!r} is running in this cluster\n  Stop it first, or choose another name."
            )
        typed = _run_config(conf, topology, settings.of_context(self.context))
        assert self.zookeeper is not None
        self._revive()
        is_temporary = self._temporary is not None
        run = TopologyRun(
            name,
            typed,
            topology,
            self.context,
            self.zookeeper,
            self._displaces(topology.id),
            self._revive,
            is_temporary,
            self._data_dir or typed.data_dir,
        )
        self.runs[name] = run
        self._end_with_the_process()
        if self._progress is not None:
            ours = (
                ""
                if self._embedded is None
                else " (our own, temporary)"
                if self._temporary
                else f" (our own, in {self._data_dir})"
            )
            run.show(
                progress_line.ShownRun(
                    self._progress, self.zookeeper + ours, str(self.context.master)
                )
            )
        return run

    @property
    def zookeeper_pid(self) -> int | None:
        """The process of our own ZooKeeper. ``None`` if a foreign ZooKeeper is used."""
        return None if self._embedded is None else self._embedded.pid

    def _revive(self) -> None:
        with self._reviving:
            _revive(self._embedded)

    def _displaces(self, topology_id: str) -> bool:
        """Whether any lease must be a dead coordinator's: the server is our own, and none of our
        runs holds the lease."""
        return self._embedded is not None and not any(
            run.topology_id == topology_id and run.is_alive for run in self.runs.values()
        )

    def kill_topology(self, name: str) -> None:
        """End a topology now. Its state stays, and the next run replays uncommitted transactions."""
        if name not in self.runs:
            raise errors.UsageError(
                f"no topology named {name!r} was submitted here\n  The topologies here: {', '.join(map(repr, self.runs)) or 'none'}"
            )
        self.runs.pop(name).kill()

    def shutdown(self) -> None:
        """End every topology, and our own ZooKeeper. The Spark session stays for the next cluster.
        In a fork of the process that made the cluster, do nothing.

        :raises TimeoutError: a topology did not end in time. All else has ended.
        """
        if os.getpid() != self._pid:
            return
        atexit.unregister(self._end_at_exit)
        with contextlib.ExitStack() as ending:
            ending.callback(self._end_zookeeper)
            for run in self.runs.values():
                if run.is_alive:
                    ending.callback(run.kill)
            self.runs.clear()

    def _end_with_the_process(self) -> None:
        """Shut down when the program ends without having done so, and before all exit handlers
        registered until now: a run reads rows of its spout."""
        atexit.unregister(self._end_at_exit)
        atexit.register(self._end_at_exit)

    def _end_at_exit(self) -> None:
        # A process that is ending may start no thread any more, but ending may need a thread.
        with contextlib.suppress(TimeoutError, RuntimeError):
            self.shutdown()

    def _end_zookeeper(self) -> None:
        if self._embedded is not None:
            self._embedded.stop()
            self._embedded = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *raised: object) -> None:
        self.shutdown()


def _run_config(
    conf: config.Config | Mapping[str, Any], topology: TopologyGraph, spark: Mapping[str, str]
) -> config.Config:
    """Settings for a run of ``topology``."""
    if not isinstance(topology, TopologyGraph):
        raise errors.UsageError(
            f"submit_topology takes the result of builder.build_topology(), not a {type(topology).__name__}"
        )
    return config.resolve(conf, spout=topology.spout.config, spark=spark).config


def _temporary_directory() -> str:
    try:
        return tempfile.mkdtemp(prefix="txtopo-")
    except OSError as error:
        raise directory.unusable(
            Path(error.filename).parent if error.filename else Path("/tmp"), error
        ) from error


def _revive(embedded: EmbeddedZooKeeper | None) -> None:
    """Start our ZooKeeper again if it has died. Its data is on disk."""
    if embedded is not None and not embedded.is_alive:
        embedded.restart()


class Submission:
    """One topology with a ZooKeeper, on the Spark context of ``spark-submit`` or on a local one. A
    context manager.

    A standby (``on_held=wait``) whose data directory is in use waits here until the directory is
    free. ``waiting`` is then called again and again with the error. An exception from ``waiting``
    ends the wait.
    """

    def __init__(
        self,
        name: str,
        conf: config.Config,
        topology: TopologyGraph,
        master: str = "local[*]",
        spark_conf: Mapping[str, str] | None = None,
        waiting: Callable[[errors.HeldError], None] = lambda held: None,
    ) -> None:
        progress_line.open_closed_streams()
        self._embedded: EmbeddedZooKeeper | None = None
        connect.refuse(master, spark_conf)
        if conf.zookeeper is None:
            # The JVM of ZooKeeper starts beside the JVM of Spark.
            self._embedded = _own_zookeeper(
                Path(conf.data_dir or DEFAULT_DATA_DIR), conf.on_held, waiting
            )
        try:
            context = session.submitted_context()
            if context is None:
                context = session.spark_context(master, spark_conf)
            self.master = str(context.master)
            """The Spark master in use."""
            zookeeper = (
                conf.zookeeper
                if self._embedded is None
                else self._embedded.wait_until_served().hosts
            )
            assert zookeeper is not None
            self.zookeeper = zookeeper
            """``host:port[/chroot]`` of the ZooKeeper in use."""
            self.run = TopologyRun(
                name,
                conf,
                topology,
                context,
                zookeeper,
                self._embedded is not None,
                functools.partial(_revive, self._embedded),
                data_dir=conf.data_dir or DEFAULT_DATA_DIR,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the run, and our own ZooKeeper."""
        try:
            if hasattr(self, "run") and self.run.is_alive:
                self.run.kill()
        finally:
            if self._embedded is not None:
                self._embedded.stop()
                self._embedded = None

    def __enter__(self) -> TopologyRun:
        return self.run

    def __exit__(self, *raised: object) -> None:
        self.close()


def _own_zookeeper(
    data_dir: Path, on_held: str, waiting: Callable[[errors.HeldError], None]
) -> EmbeddedZooKeeper:
    """Our own ZooKeeper in ``data_dir``, launched when the directory is free."""
    embedded = EmbeddedZooKeeper(data_dir)
    while True:
        try:
            return embedded.launch()
        except errors.HeldError as held:
            if on_held == "refuse":
                raise
            if on_held == "take":
                raise errors.FencedError(
                    f"{str(held).splitlines()[0]}, and cannot be taken over: the ZooKeeper in it ends with the process that runs it\n"
                    f"  Stop that process, or wait for its end with --standby. A ZooKeeper that both reach (--zookeeper) allows taking over."
                ) from None
            waiting(held)
            time.sleep(_DIRECTORY_POLL_S)


def submit_topology(
    name: str, conf: config.Config | Mapping[str, Any], topology: TopologyGraph
) -> RunStatus:
    """Run ``topology`` on this program's Spark context and return when it has stopped: on an error,
    which is raised, or when ``conf.until`` or ``conf.max_transactions`` says so.

    ``conf`` wins over Spark's configuration, the environment and a file
    (:func:`txtopo.config.resolve`).
    """
    typed = _run_config(conf, topology, settings.of_this_process())
    with Submission(name, typed, topology) as run:
        return run.join()
