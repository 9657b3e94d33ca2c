"""Drivers and exporters are killed, stopped, and cut off from ZooKeeper while a queue is exported: the
table equals the store in the end, and no key ever goes back.

A trigger keeps each sequence that the table takes, to be compared with a model. The kills come from a
seed, which is printed. The races of the processes do not.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.conformance import test_export_queue
from tests.patience import PATIENCE_S, wait_until
from tests.processes import held_exporter, owners
from tests.servers.clusters import fast
from tests.servers.databases import Database
from tests.servers.ensemble import Ensemble, Server
from tests.servers.postgres import PostgresServer
from tests.starter.commands import ROOT, Command, done
from tests.topologies import exported
from txtopo import LocalCluster, TopologyRun
from txtopo.exports import ExportQueue, entries, layout, leases, upkeep
from txtopo.runtime import export
from txtopo.runtime.visibility import Visibility
from txtopo.stores import SqliteStore

SEED = int(os.environ.get("TEST_EXPORT_SEED") or random.SystemRandom().getrandbits(32))
KILLS = int(os.environ.get("TEST_EXPORT_KILLS", "100"))
WEIGHTS = {"exporter": 5, "driver": 1}
EXPORTERS = 3
MORE = 30
"""The last driver commits so many transactions more."""
MODULE = ROOT / "tests" / "topologies" / "exported.py"


class Target:
    """The table, with its queue and the store in the same database."""

    def __init__(self, server: PostgresServer) -> None:
        self.database = Database(server, server.new_database())
        for statement in exported.TABLES:
            self.database.execute(statement)
        self.url = self.database.url
        self.queue = exported.open_queue(self.url)
        self.name = f"{MODULE}:quick_queue({self.url!r})"
        """The queue, for commands."""

    def values(self) -> dict[str, int]:
        """The table's values by key."""
        return dict(self.database.execute("SELECT word, count FROM told WHERE NOT txtopo_deleted"))

    def taken(self) -> tuple[int, int]:
        """How many entries the table has taken, and the newest one's transaction."""
        ((count, newest),) = self.database.execute(
            "SELECT count(*), coalesce(max(sequence), 0) FROM history"
        )
        return count, newest >> entries.SEQUENCE_BITS

    def buckets(self) -> list[str]:
        """The states of the buckets, as stored."""
        with self.queue.store.direct() as rows:
            (stored,) = rows.read_ranges([layout.Names(self.queue.id).all_of("b")], 100)
            return [row.curr or "" for row in stored]

    def beats(self, exporter: Command) -> int:
        """The newest beat of the buckets that ``exporter`` holds. 0 if it holds none."""
        states = map(layout.Bucket.of, self.buckets())
        return max((each.beat for each in states if f":{exporter.pid}:" in each.holder), default=0)

    def check_history(self, committed: int) -> None:
        """No key went back, and each value was the key's after the transaction of its sequence."""
        model, last = defaultdict[str, list[tuple[int, int | None]]](list), Counter[str]()
        for txid, word, value in exported.changes(committed):
            model[word].append((txid, value))
        select = "SELECT word, count, sequence FROM history ORDER BY number"
        for word, value, sequence in self.database.execute(select):
            assert sequence > last[word], f"{word} went back from {last[word]} to {sequence}"
            last[word], txid = sequence, sequence >> entries.SEQUENCE_BITS
            index = bisect.bisect(model[word], txid, key=lambda change: change[0]) - 1
            assert index >= 0, f"{word} has no value after transaction {txid}"
            assert value == model[word][index][1], f"{word} has a wrong value at {sequence}"

    def check(self, committed: int) -> None:
        """Table and store have all ``committed`` transactions, and the queue is empty."""
        self.check_history(committed)
        assert self.values() == dict(self.queue.store.items()) == exported.values(committed)
        assert upkeep.status(self.queue).entries == 0
        assert list(upkeep.entries_of(self.queue)) == []


@pytest.fixture
def target(postgres: PostgresServer) -> Target:
    return Target(postgres)


# -- random kills ----------------------------------------------------------------------------------


class Soak:
    """A driver that exports, and some processes that export."""

    def __init__(self, target: Target, place: Path) -> None:
        self._target, self._dice, self.tally = target, random.Random(SEED), Counter[str]()
        self._data_dir = place / "state"
        self._export = ["txtopo", "export", target.name, "--data-dir", str(self._data_dir)]
        self._visibility = Visibility(exported.ID, data_dir=self._data_dir)
        self._processes = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._driver = self._start_driver()
        self._exporters = [self._start(self._export) for _ in range(EXPORTERS)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._processes.close()
        self._visibility.close()

    def strike(self) -> None:
        """Wait for a random moment, and kill a random process."""
        (kind,) = self._dice.choices([*WEIGHTS], [*WEIGHTS.values()])
        count = self._dice.choice((0, 0, 1, 5, 20)) + self._target.taken()[0]
        self._driver.wait_until(lambda: self._target.taken()[0] >= count, f"{count} entries")
        if kind == "driver":
            self._kill(self._driver, kind)
            self._driver = self._start_driver()
        else:
            number = self._dice.randrange(EXPORTERS)
            self._kill(self._exporters[number], kind)
            self._exporters[number] = self._start(self._export)
        count, newest = self._target.taken()
        assert newest == 0 or newest <= self._visibility.txid(), "told before it was recorded"
        print(f"{self.tally.total()}: {kind} killed, {count:,} entries taken", flush=True)

    def finish(self) -> int:
        """Have a last driver commit some transactions, and the exporters tell them. Returns the
        number of committed transactions."""
        self._kill(self._driver, "driver")
        self._driver = self._start_driver(str(MORE))
        assert self._driver.wait() == 0, self._driver.said
        for exporter in self._exporters:
            exporter.signal(signal.SIGTERM)
            assert exporter.wait() == 0, exporter.said
        done([*self._export, "--until-empty"], ROOT)
        return self._visibility.txid()

    def _kill(self, process: Command, kind: str) -> None:
        is_holder = self._target.beats(process) > 0
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.said
        assert "has ended: " not in process.said, process.said
        self.tally[f"{kind} with buckets" if is_holder else kind] += 1

    def _start_driver(self, *arguments: str) -> Command:
        driving = ["python", "-c", exported.DRIVING, self._target.url, str(self._data_dir)]
        return self._start([*driving, *arguments])

    def _start(self, command: list[str]) -> Command:
        return self._processes.enter_context(Command(command, ROOT))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.rule(25, 28, 40)
def test_drivers_and_exporters_are_killed_at_random_and_no_key_goes_back(
    target: Target, tmp_path: Path
) -> None:
    print(f"again: TEST_EXPORT_SEED={SEED} TEST_EXPORT_KILLS={KILLS}", flush=True)
    with Soak(target, tmp_path) as soak:
        while soak.tally.total() < KILLS:
            soak.strike()
        committed = soak.finish()
        print(f"{soak.tally}, {committed:,} transactions", flush=True)
        assert soak.tally["driver with buckets"] > 0
        assert soak.tally["exporter with buckets"] > 0
    target.check(committed)


# -- one fault each --------------------------------------------------------------------------------


class Scene:
    """The topology on the Spark session that all tests share, with a ZooKeeper server of its own."""

    def __init__(self, target: Target, server: Server) -> None:
        self.target, self.server = target, server
        self._place = ["--zookeeper", server.hosts]
        self.committed = 0

    @contextlib.contextmanager
    def running(self, hold: Path | None = None, **settings: Any) -> Iterator[TopologyRun]:
        """The run."""
        topology = exported.make_topology(self.target.queue, hold=hold)
        with LocalCluster(zookeeper=self.server.hosts, master="local[2]") as cluster:
            conf = fast(max_spout_pending=3, **settings)
            yield cluster.submit_topology(exported.ID, conf, topology)

    def commit(self, count: int) -> None:
        """Run for so many transactions more."""
        with self.running(max_transactions=count) as run:
            run.join(PATIENCE_S)
        self.committed += count

    def exporter(self, *exporter: str) -> Command:
        """A process that exports."""
        return Command(["txtopo", "export", self.target.name, *exporter, *self._place], ROOT)

    def end(self, exporter: Command) -> None:
        """Wait until nothing is left, and end the process."""
        exporter.wait_until(lambda: upkeep.status(self.target.queue).entries == 0, "an empty queue")
        exporter.signal(signal.SIGTERM)
        assert exporter.wait() == 0, exporter.said

    def commit_and_export(self, count: int) -> None:
        """Run for so many transactions more, beside an exporter that tells them all."""
        with self.exporter() as exporter:
            self.commit(count)
            self.end(exporter)

    def replay(self) -> None:
        """Tell every value of the store."""
        done(["txtopo", "export", "replay", self.target.name, "--from-store", *self._place], ROOT)


@pytest.fixture
def scene(target: Target, cluster: LocalCluster, tmp_path: Path) -> Iterator[Scene]:
    assert cluster.context is not None
    with Ensemble(tmp_path / "zookeeper", size=1) as alone:
        yield Scene(target, alone.servers[0])


@pytest.mark.thorough
@pytest.mark.rule(25, 40)
@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_while_zookeeper_is_away_exporters_pause_and_tell_nothing_unrecorded(
    scene: Scene,
    fault: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, server, hold = scene.target, scene.server, tmp_path / "hold"
    monkeypatch.setattr(leases, "LEASE_S", 1.0)
    monkeypatch.setattr(leases, "BEAT_S", 0.25)
    with scene.running(hold) as run:
        beside = run.export(target.queue)
        run.wait_for_txid(10, PATIENCE_S)
        hold.touch()
        wait_until(hold.with_suffix(".held").exists)
        txid = run.status().current
        with scene.exporter() as exporter:  # which reads its buckets anew
            exporter.wait_until(lambda: target.beats(exporter) > 0, "its share of the buckets")
            beats = target.beats(exporter)
            exporter.wait_until(lambda: target.beats(exporter) > beats + 1, "some steps")
            exporter.wait_until(lambda: target.taken()[1] >= txid - 1, "all that is recorded")
            server.kill() if fault == "killed" else server.pause()
            hold.unlink()
            wait_until(lambda: run.status().active[0][::2] == (txid, "recording"))
            exporter.wait_until_it_says("export queue 'counts' waits: ")
            wait_until(lambda: "export queue 'counts' waits: " in caplog.text)
            assert dict(target.queue.store.items()) == exported.values(txid)
            assert (target.values(), target.taken()[1]) == (exported.values(txid - 1), txid - 1)
            server.start() if fault == "killed" else server.resume()
            run.wait_for_txid(txid + 10, PATIENCE_S)
            status = run.stop(PATIENCE_S)
            assert (beside.error, status.epoch) == (None, 1)
            scene.end(exporter)
    target.check(status.current - 1)


@pytest.mark.thorough
@pytest.mark.rule(40)
def test_an_exporter_that_does_not_return_slows_no_commit(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, target = threading.Event(), threading.Event(), test_export_queue.Target()

    def meanwhile(told: object) -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)

    target.meanwhile = meanwhile
    monkeypatch.setattr(export, "END_S", PATIENCE_S)
    queue = ExportQueue("counts", SqliteStore(tmp_path / "store.db", "counts"))
    topology = exported.make_topology(queue, "slow-target")
    run = cluster.submit_topology(topology.id, fast(max_spout_pending=3), topology)
    try:
        run.export(queue, target)
        assert began.wait(PATIENCE_S)
        began_at = run.status().current
        run.wait_for_txid(began_at + 100, PATIENCE_S)
        assert (len(target.calls), target.kept) == (1, {})
    finally:
        may_end.set()
    committed = run.stop(PATIENCE_S).current - 1
    assert target.values == dict(queue.store.items()) == exported.values(committed)


@pytest.mark.thorough
@pytest.mark.rule(40)
def test_a_target_from_an_old_copy_equals_the_store_when_it_was_emptied_and_told_again(
    scene: Scene,
) -> None:
    target, run = scene.target, scene.target.database.execute
    scene.commit_and_export(10)
    run("CREATE TABLE copy AS TABLE told")
    scene.commit_and_export(10)
    target.check(20)
    run("TRUNCATE told, history")
    run("INSERT INTO told SELECT * FROM copy")
    scene.commit_and_export(10)
    told = [*exported.changes(10), *exported.changes(30, first=21)]
    kept = {word: value for _, word, value in told}
    assert target.values() == {word: value for word, value in kept.items() if value is not None}

    scene.replay()
    gone = {
        word: value for word, value in target.values().items() if word not in exported.values(30)
    }
    assert gone, "a key that is gone stays"
    assert target.values() == exported.values(30) | gone

    run("TRUNCATE told, history")
    scene.replay()
    assert target.values() == exported.values(30)
    scene.commit_and_export(10)
    target.check(40)


@pytest.mark.thorough
@pytest.mark.rule(40)
@pytest.mark.parametrize("step", [*held_exporter.STEPS, "committing"])
def test_an_exporter_that_is_stopped_in_a_call_while_another_takes_over_changes_nothing(
    scene: Scene, step: str
) -> None:
    target = scene.target
    exporter = f"{held_exporter.__file__}:HeldExporter({target.name!r}, {step!r}, True)"
    with scene.exporter(exporter) as late:
        scene.commit(10)
        late.wait_until(lambda: target.taken()[0] > 0, "the first call")
        scene.commit(10)
        late.wait_until_it_says(f"held {step} export")
        owners.wait_until_suspended(late.pid)
        assert target.beats(late) > 0
        scene.commit_and_export(10)
        target.check(30)
        buckets, taken = target.buckets(), target.taken()
        late.signal(signal.SIGTERM)
        late.signal(signal.SIGCONT)
        assert late.wait() == 0, late.said
    assert (target.buckets(), target.taken()) == (buckets, taken)
    scene.commit_and_export(10)
    target.check(40)
