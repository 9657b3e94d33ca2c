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
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.servers.databases import Database
from tests.servers.postgres import PostgresServer
from tests.starter.commands import ROOT, Command, done
from tests.topologies import exported
from txtopo import VisibleTxid
from txtopo.exports import entries, upkeep
from txtopo.runtime.visibility import Visibility

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
        count = self._dice.choice((0, 0, 1, 10, 100)) + self._target.taken()[0]
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
        holders = [each.holder for each in upkeep.status(self._target.queue).buckets]
        is_holder = any(f":{process.pid}:" in holder for holder in holders)
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
