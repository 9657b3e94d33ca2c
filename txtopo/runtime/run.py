"""A running topology, in the hands of its user.

Runs on: driver.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txtopo import config, errors
from txtopo.dataplane import out_of_resources
from txtopo.dataplane.job import Limits, Run
from txtopo.engine import observer
from txtopo.engine.engine import Engine
from txtopo.engine.logged import LogLines
from txtopo.engine.status import RunStatus, StatusBoard
from txtopo.exports import Exporter, ExportQueue
from txtopo.exports.exporting import Exporting
from txtopo.journal import records
from txtopo.journal.live import Moment
from txtopo.journal.recording import Recording
from txtopo.runtime import progress
from txtopo.runtime.export import Export, SharedVisibility, finish_all
from txtopo.runtime.requests import Requests
from txtopo.runtime.revival import Revival
from txtopo.runtime.visibility import Visibility
from txtopo.spark import session, settings, threads
from txtopo.spark.jobs import SparkJobs
from txtopo.spark.machine import Machine
from txtopo.state import base, credentials, layout, lease, liveness, retry
from txtopo.state.records import LeaseRecord
from txtopo.state.requests import Standby
from txtopo.state.topology import End, Holder, TopologyState
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.topology import redaction
from txtopo.topology.graph import TopologyGraph

_WAIT_S = 0.5
_END_S = 30.0

STANDBY_POLL_S = 0.25
"""How often a run that waits for its turn looks whether the topology is free."""


def refuse_local_only(graph: TopologyGraph, master: str) -> None:
    """Refuse a topology with a part that works on one machine only, where ``master`` has others."""
    if graph.local_only and session.local_cores(master) is None:
        cure = (
            "Keep results in a txtopo.stores.SqlStore, and read rows from files that every host sees (FileTransactionalSpout),\n"
            "    or through your own spout."
        )
        problems = tuple(
            f"component {id!r}: {reason}, but the master is {redaction.redacted(master)}\n    {cure}"
            for id, reason in graph.local_only
        )
        raise errors.InvalidTopologyError(graph.id, problems)


class TopologyRun:
    """A handle on a running topology, to wait, to look, to stop. Made by ``submit_topology``.

    ``wait_*`` and :meth:`join` raise the error that ended the run, or ``TimeoutError`` after
    ``timeout_s``.
    """

    def __init__(
        self,
        name: str,
        conf: config.Config,
        graph: TopologyGraph,
        context: Any,
        zookeeper: str,
        displaces: bool,
        revive: Callable[[], None],
        is_state_temporary: bool = False,
        data_dir: str | Path | None = None,
    ) -> None:
        """Take the topology and begin, or begin to wait for the topology. Mistakes that can be seen
        beforehand are raised now.

        ``displaces``: any lease in this ZooKeeper is known to be a dead coordinator's. ``revive``
        is called about once a second (see the engine). ``is_state_temporary``: the state goes with
        the cluster. ``data_dir`` is where the journal is; without it there is none.
        """
        self.name, self.topology_id, self.conf = name, graph.id, conf
        refuse_local_only(graph, str(context.master))
        self._graph, self._context, self._is_state_temporary = graph, context, is_state_temporary
        self._displaces = displaces or conf.on_held == "take"
        self._error: BaseException | None = None
        self._given_up = threading.Event()
        self._killed = False
        self._not_taken = threading.Event()
        """Set when the run is stopped before it has an engine: the wait for ZooKeeper then ends."""
        self._waited_for: LeaseRecord | None = None
        """The lease that this run waited for."""
        self._engine: Engine | None = None
        self._began: RunStatus | None = None
        self._board = StatusBoard(RunStatus(graph.id, name, state="standby"))
        log_lines = LogLines(graph.id)
        self._observers: list[observer.Observer] = [self._board, log_lines]
        self._recording: Recording | None = None
        if data_dir is not None and conf.journal != "off":

            def look() -> Moment:
                store, turned_at = self._store, self._machine.turned_at()
                standbys = self._requests.standbys
                return Moment(
                    time.time(), self.status(), turned_at, store.is_away, store.outages, standbys
                )

            facts = records.facts(graph, name, conf, str(context.master), str(context.version))
            self._recording = Recording(
                graph.id, Path(data_dir), conf.journal_bytes_max, conf.journal, facts, look
            )
            self._observers.append(self._recording)
        self._exports: list[Export] = []
        self._zookeeper = zookeeper
        self._shown: progress.ShownRun | None = None
        self._revive = Revival(revive, self._board, log_lines)
        self._store = ZooKeeperStateStore(
            zookeeper,
            conf.zookeeper_root,
            conf.zookeeper_connect_timeout_s,
            conf.zookeeper_session_timeout_s,
            credentials.of(conf),
        )
        asked = self._recording.note_request if self._recording else lambda *_: None
        self._requests = Requests(self._store, graph.id, asked)
        self._observers.append(self._requests)
        try:
            self._take()
        except errors.HeldError as error:
            if conf.on_held != "wait":
                self._store.close()
                raise
            self._board.update(last_error=str(error))
        except BaseException:
            self._store.close()
            raise
        try:
            self._thread = threads.start(self._run, f"txtopo-{name}")
        except BaseException:
            self._close(has_run=False)
            raise

    def __repr__(self) -> str:
        status = self.status()
        return f"<run {self.name!r} of topology {self.topology_id!r}: {status.state}, next txid {status.current}, {len(status.active)} in flight>"

    @property
    def began(self) -> RunStatus | None:
        """The status before anything ran, with the txid at which the run began. ``None`` while the
        run waits for the topology."""
        return self._began

    def _take(self) -> None:
        """Take the topology, and make the engine that runs it."""
        conf, graph = self.conf, self._graph
        # Asking for the cores and for ZooKeeper's protection may take long, so both come before the
        # topology is held.
        cores = session.cores_of(self._context)
        waits = retry.Retry(self._store, conf.zookeeper_wait_s, abandoned=self._not_taken)
        waits.call(lambda: self._store.require_protected(layout.Layout(graph.id).top))
        holder = self._holder()
        state = TopologyState.open(
            self._store,
            graph.id,
            holder,
            self._displaces,
            conf.metadata_bytes_max,
            conf.zookeeper_wait_s,
            abandoned=self._not_taken,
        )
        with contextlib.ExitStack() as undo:
            undo.push(lambda _, error, trace: state.close(self._end(error)))
            began = RunStatus(
                graph.id,
                self.name,
                generation=state.generation,
                epoch=state.epoch,
                current=state.current,
            )
            limits = Limits(
                conf.blob_bytes_max, conf.spill_bytes, conf.inline_bytes_max, conf.stores_max
            )
            mapping = {
                **conf.as_mapping(),
                "topology.name": self.name,
                "topology.transactional.id": graph.id,
            }
            is_local = session.local_cores(str(self._context.master)) is not None
            run = Run(uuid.uuid4().hex, graph, cores, mapping, state.generation, is_local, limits)
            machine = Machine(graph.id)
            jobs = SparkJobs(self._context, run)
            undo.push(lambda _, error, trace: self._close_jobs(jobs, error))
            engine = Engine(
                run,
                conf,
                jobs,
                state,
                self._observers,
                random.Random(),
                self._each_second,
                machine,
            )
            undo.callback(engine.close)
            # A topology that is paused begins nothing.
            waits.call(lambda: self._requests.look(engine, state.epoch))
            undo.pop_all()
        self._state, self._jobs, self._machine = state, jobs, machine
        self._board.update(
            state="starting",
            generation=state.generation,
            epoch=state.epoch,
            current=state.current,
            last_error=None,
        )
        before = state.taken_from or self._waited_for
        if self._recording is not None and before is not None:
            shown = {"host", "pid", "started", "name", "epoch"}
            self._recording.note_takeover(before.model_dump(include=shown))
        self._began, self._engine = began, engine
        if self._killed:
            engine.kill()
        elif self._given_up.is_set():
            engine.drain()

    def _holder(self) -> Holder:
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Holder(
            socket.gethostname(), os.getpid(), started, self.name, liveness.process_identity()
        )

    def _each_second(self) -> None:
        """On the thread that renews the lease."""
        self._revive()
        if self._engine is not None:
            with contextlib.suppress(base.StateUnavailableError):  # it is asked the next time
                self._requests.look(self._engine, self._state.epoch)

    def _run(self) -> None:
        try:
            self._stand_by()
            if self._engine is not None:
                self._engine.run()
        except BaseException as error:
            self._error = error
            self._error = self._state_is_gone(
                self._revive.explained(out_of_resources.explained(error))
            )
        finally:
            try:
                with contextlib.ExitStack() as rest:
                    rest.callback(finish_all, self._exports, lambda: self._killed)
                    rest.callback(self._close)  # the next run need not wait for exports
                    observer.tell(self._observers, lambda each: each.ended(self._error))
            except BaseException as error:
                self._error = self._error or error
            if self._shown is not None:
                self._end_shown(self._shown)

    def _close(self, has_run: bool = True) -> None:
        """Close all parts. A part that fails to close keeps no other part open."""
        with contextlib.ExitStack() as rest:
            if self._engine is not None:
                rest.callback(lambda: self._close_jobs(self._jobs, self._error))
            rest.callback(self._store.close)
            if self._engine is not None:
                rest.callback(lambda: self._state.close(self._end(self._error)))
                if not has_run:
                    self._engine.close()

    def _close_jobs(self, jobs: SparkJobs, end: BaseException | None) -> None:
        try:
            jobs.close()
        except errors.SparkLostError as error:
            if end is None:  # its last job was abandoned
                observer.LOGGER.warning("topology %r has stopped, but %s", self.topology_id, error)

    def _end(self, error: BaseException | None) -> End:
        """How the run ends, for its state."""
        status = self._board.snapshot()
        code = errors.exit_code_of(error) if error else None if self._killed else 0
        return End(
            datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            code,
            records.text_of(error),
            None if self._recording is None else str(self._recording.data_dir),
            status.committed,
            status.failed,
            status.behind,
        )

    def _state_is_gone(self, error: BaseException) -> BaseException:
        """``error``. If a store remains of a run whose state went with its cluster, an error with
        the cure."""
        if (
            not self._is_state_temporary
            or not isinstance(error, errors.StateMismatchError)
            or not error.without_state
        ):
            return error
        return errors.StateMismatchError(
            f"{str(error).splitlines()[0]}\n"
            "  The state that belongs to the store is gone: without data_dir, a LocalCluster keeps its state in a temporary directory and\n"
            "  removes it at its end. Nothing was written. First empty the store, so that the topology can begin with the first batch:\n"
            f"  `{error.without_state}`, or empty all stores of the topology: `txtopo reset TARGET --execute`\n"
            "  Then keep the state, as the store is kept: LocalCluster(data_dir=PATH)"
        )

    def _stand_by(self) -> None:
        """Wait until the topology is ours, or not wanted any more. A ZooKeeper that is away is
        waited for as long as a commit would wait."""
        paths = layout.Layout(self.topology_id)
        standby = Standby.of(self._store, paths, self._holder())
        away_since: float | None = None
        while self._engine is None and not self._given_up.wait(STANDBY_POLL_S):
            self._revive()
            try:
                holder = lease.live_holder(self._store, paths)
                self._waited_for, is_free = holder or self._waited_for, holder is None
                (standby.end if is_free else standby.keep)()
            except base.StateUnavailableError as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > self.conf.zookeeper_wait_s:
                    raise errors.ZooKeeperUnavailableError(
                        f"{str(error).splitlines()[0]}, for {self.conf.zookeeper_wait_s:g} s\n  Nothing was running here yet. Start the run again."
                    ) from error
                continue
            away_since = None
            if is_free:
                try:
                    self._take()
                except errors.HeldError:
                    # Another standby was faster.
                    continue
                except retry.AbandonedError:
                    return

    def show(self, shown: progress.ShownRun) -> None:
        """Show how the run goes while the program waits for it, and how it ended."""
        self._shown = shown
        shown.update(self.status(), self.began)
        if not self.is_alive:
            self._end_shown(shown)

    def _end_shown(self, shown: progress.ShownRun) -> None:
        shown.ended(
            self.status(),
            "failed" if self._error else "stopped" if self._given_up.is_set() else "done",
        )

    # -- looking ----------------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """A frozen snapshot."""
        return self._board.snapshot()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return bool(self._thread.is_alive())

    # -- waiting ----------------------------------------------------------------------------------

    def wait_for_txid(self, txid: int, timeout_s: float = 60.0) -> RunStatus:
        """Wait until ``txid`` is committed."""
        return self._wait(
            lambda status: status.current > txid, timeout_s, f"txid {txid} to be committed"
        )

    def wait_until_idle(self, timeout_s: float = 60.0) -> RunStatus:
        """Wait until the spout is not ready and no transaction is in flight. All data that the
        source held at the call is then committed."""
        asked = self.status().asked
        return self._wait(
            lambda status: status.idle_at > asked, timeout_s, "the topology to be idle"
        )

    def join(self, timeout_s: float | None = None) -> RunStatus:
        """Wait until the run ends."""
        return self._wait(lambda status: False, timeout_s, "the topology to end")

    def _wait(
        self, is_met: Callable[[RunStatus], bool], timeout_s: float | None, awaited: str
    ) -> RunStatus:
        settings.refuse_fork()  # its copy of the thread has ended
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                ended = not self._thread.is_alive()
                status = self.status()
                if self._shown is not None and not ended:
                    self._shown.update(status, self.began)
                if is_met(status):
                    return status
                if ended:
                    if self._error is not None:
                        raise self._error
                    if awaited == "the topology to end":
                        return status
                    raise errors.TxtopoError(
                        f"topology {self.topology_id!r} has stopped while waiting for {awaited}"
                    )
                left = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"waited {timeout_s} s for {awaited}\n  Now: {status}")
                if status.state in ("stopped", "failed"):
                    self._thread.join(left)
                else:
                    self._board.wait(left)
        finally:
            if self._shown is not None:
                self._shown.pause()

    def _give_up(self) -> None:
        self._given_up.set()
        if self._engine is None:
            self._not_taken.set()

    # -- exporting --------------------------------------------------------------------------------

    def export(
        self, queue: ExportQueue, exporter: Exporter | None = None, *, max_attempts: int = 10
    ) -> Export:
        """Export ``queue`` by ``exporter``, or by the queue's own, in a thread of this process. A
        bucket stops after ``max_attempts`` failures in a row."""
        exporter = exporter or queue.exporter
        if exporter is None:
            raise errors.UsageError(
                f"export queue {queue.id!r} has no exporter\n  Give one: run.export(queue, exporter), or ExportQueue(…, exporter=…)."
            )
        visibility = SharedVisibility(
            Visibility(self.topology_id, zookeeper=self._zookeeper, conf=self.conf)
        )
        exporting = Exporting(queue, exporter, visibility.txid, max_attempts=max_attempts)
        export = Export(exporting, visibility, queue.id)
        self._exports.append(export)
        self._observers.append(export)
        if not self.is_alive or self.status().state in ("stopped", "failed"):
            export.ended(None)  # the run has told its observers already
        return export

    # -- stopping ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begin to stop: finish commits in flight, abandon the rest. Returns at once."""
        self._give_up()
        if self._engine is not None:
            self._engine.drain()

    def stop(self, timeout_s: float = 30.0) -> RunStatus:
        """Drain commits in flight, abandon the rest, and wait for the end. The next run replays the
        abandoned transactions."""
        self.drain()
        return self.join(timeout_s)

    def kill(self) -> None:
        """Abort now, and wait for the end. Nothing is lost: the next run replays uncommitted
        transactions."""
        self._killed = True
        self._give_up()
        if self._engine is not None:
            self._engine.kill()
        self._thread.join(_END_S)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            raise TimeoutError(f"topology {self.topology_id!r} did not end within {_END_S} s")
