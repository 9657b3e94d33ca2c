"""The spout over a directory that a ``FileSink`` writes, and spouts over other machines' files (R4,
R18)."""

from __future__ import annotations

import glob
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.topologies.file_sinks import ROWS, Writing
from txtopo import errors
from txtopo.connectors.files import (
    CommittedFilesSpout,
    FileSink,
    committed_spout,
    groups,
    local,
    memory,
    remote,
    storage,
    upkeep,
)
from txtopo.testing import check_spout
from txtopo.topology.conf import TopologyConf
from txtopo.topology.context import CoordinatorContext


class Chain:
    """Directories, each with the first transactions of a sink, and their coordinators."""

    def __init__(self, folder: Path, **sink: Any) -> None:
        self._folder, self._numbers, self._sink = folder, itertools.count(), sink
        self.last: Any = None

    def spout(self) -> CommittedFilesSpout:
        """A spout over a new directory."""
        root = self._folder / f"{next(self._numbers)}"
        self.writing = Writing(FileSink(root, **self._sink), tasks=2)
        self._txid = 0
        for _ in range(3):
            self.grow(None)
        return CommittedFilesSpout(root)

    def grow(self, spout: Any) -> None:
        """Write one transaction with rows, and one without."""
        for rows in (ROWS, []):
            self._txid += 1
            self.writing.write_all(self._txid, 0, rows)

    def coordinator(self, spout: CommittedFilesSpout) -> Any:
        context = CoordinatorContext("copy", "first", "source", lambda: self.last)
        return spout.get_coordinator(TopologyConf({}), context)

    def next(self, coordinator: Any) -> int | None:
        """The next transaction in the directory, if there is one."""
        if not coordinator.is_ready():
            return None
        self.last = coordinator.initialize_transaction(1, self.last)
        return int(self.last["txid"])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_spout, "POLL_S", 0.0)


@pytest.mark.rule(18)
@pytest.mark.parametrize(
    "sink", [{"partition_by": ["account"]}, {"format": "parquet"}, {"opaque": True}]
)
def test_the_contract_of_spouts(tmp_path: Path, sink: dict[str, Any]) -> None:
    chain = Chain(tmp_path, **sink)
    rows = [(*row,) for row in ROWS * 5]
    if "partition_by" in sink:
        rows = [(str(account), cents) for account, cents in rows]
    report = check_spout(chain.spout, expected=rows, grow=chain.grow, stories=3)
    assert report.transactions > 3


def test_transactions_come_one_by_one_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    coordinator = chain.coordinator(chain.spout())
    assert [chain.next(coordinator) for _ in range(4)] == [1, 3, 5, None]
    chain.grow(None)
    assert (chain.next(coordinator), chain.next(coordinator)) == (7, None)


def test_transactions_without_rows_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(tmp_path)
    coordinator = chain.coordinator(chain.spout())
    for _ in range(3):
        chain.next(coordinator)
    for txid in range(7, 50):
        chain.writing.write_all(txid, 0, [])
    assert chain.next(coordinator) is None
    opened: list[str] = []
    read = local.LocalStorage.open

    def open_one(storage: local.LocalStorage, path: str) -> Any:
        opened.append(path)
        return read(storage, path)

    monkeypatch.setattr(local.LocalStorage, "open", open_one)
    assert chain.next(coordinator) is None
    assert len(opened) < 5


def test_types_are_those_of_the_schema(tmp_path: Path) -> None:
    schema = pa.schema(
        [("at", pa.timestamp("s")), ("word", pa.dictionary(pa.int32(), pa.string()))]
    )
    writing = Writing(FileSink(tmp_path, format="parquet", schema=schema))
    writing.begin(1, 0)
    batch = pa.RecordBatch.from_pylist([{"at": 1, "word": "a"}], schema)
    writing.sink.execute_batch(batch)
    writing.sink.finish_batch()
    report = check_spout(lambda: CommittedFilesSpout(tmp_path), stories=1)
    assert report.transactions == 1


def test_a_source_that_was_cleared_is_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    spout = chain.spout()
    coordinator = chain.coordinator(spout)
    assert chain.next(coordinator) == 1
    upkeep.open_records(spout.root, "files").clear("sales")
    with pytest.raises(errors.StateMismatchError, match="was cleared while it was read"):
        chain.next(chain.coordinator(spout))


def test_a_source_that_was_adopted_goes_on(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    spout = chain.spout()
    upkeep.open_records(spout.root, "files").adopt("sales", "one", 1, ["write"])
    again = Writing(FileSink(spout.root))
    for txid in (2, 3):
        again.write(txid, 0, ROWS)
    coordinator = chain.coordinator(spout)
    assert [chain.next(coordinator) for _ in range(6)] == [1, 3, 5, 2, 3, None]


def test_columns_that_are_not_known_yet(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="the columns are not known"):
        CommittedFilesSpout(tmp_path)
    assert CommittedFilesSpout(tmp_path, columns=["account"]).columns == ("account",)


def test_patterns_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory.MemoryStorage()
    for path in ("a.csv", "x/b.csv", "x/y/c.csv", "x/_SUCCESS", "_x/d.csv", "x/.e.csv", "x/f.txt"):
        store.put(path, b"")
    monkeypatch.setattr(storage, "open_storage", lambda *arguments: store)

    def listed(pattern: str) -> list[str]:
        return [path.removeprefix("s3://in/") for path in remote.listed(f"s3://in/{pattern}")]

    assert listed("*.csv") == ["a.csv"]
    assert listed("**/*.csv") == ["a.csv", "x/b.csv", "x/y/c.csv"]
    assert listed("**") == ["a.csv", "x/b.csv", "x/f.txt", "x/y/c.csv"]
    assert listed("[!b-z]*") == ["a.csv"]
    assert listed("missing.csv?region=x") == ["missing.csv?region=x"]


def test_brackets_in_an_address_are_read_as_in_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = (
        "top/run[12]/a.csv",
        "top/run1/a.csv",
        "top/alone[12]/a.csv",
        "top/b*.csv",
        "top/bc.csv",
        "top/x[!].csv",
        "top/sales[2026-07].csv",
        "top/day[2026-07]/a.csv",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def open_storage(folder: str, *_: Any) -> memory.MemoryStorage:
        store = memory.MemoryStorage()
        for name in names:
            if f"s3://in/{name}".startswith(f"{folder}/"):
                store.put(f"s3://in/{name}".removeprefix(f"{folder}/"), b"x")
        return store

    monkeypatch.setattr(storage, "open_storage", open_storage)

    def answer(root: str, pattern: str) -> object:
        try:
            return [path.removeprefix(root) for path in groups.listed([f"{root}/top/{pattern}"])]
        except errors.InputError as error:
            return str(error).replace(glob.escape(root), root).replace(root, "")

    for pattern in (
        "run[12]/a.csv",
        "run[12]/*.csv",
        "run[[]12]/*.csv",
        "run[[]12]/a.csv",
        "run[[]12]/missing.csv",
        "run[1]/*.csv",
        "alone[12]/*.csv",
        "sales[2026-07].csv",
        "day[2026-07]/*.csv",
        "[r-a]*",
        "run1[!a]a.csv",
        "r*[]]/a.csv",
        "x[!]*",
        "**/a.csv",
        "b*.csv",
        "b[*].csv",
    ):
        local, remote = answer(str(tmp_path), pattern), answer("s3://in", pattern)
        assert local == remote, pattern
