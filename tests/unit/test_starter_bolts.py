"""The starters' bolts and plain functions, without Spark: a few lines stand for the topology, the
store is real."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from starter import transactional_global_count, transactional_words
from tests.topologies.planned_spouts import Collected, Drive, Row
from txtopo import (
    BasicOutputCollector,
    Fields,
    TopologyConf,
    TopologyContext,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.demo import stdlib_words
from txtopo.stores import SqliteStore
from txtopo.topology import pickling
from txtopo.topology.grouping import GroupingKind
from txtopo.topology.stream import TupleSource


class CollectedByBasicBolt(Collected, BasicOutputCollector):
    """The same for a basic bolt."""


class Resources:
    """What one worker process keeps; closed at the end of the test."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __call__(self, name: str, factory: Any) -> Any:
        if name not in self.made:
            self.made[name] = factory()
        return self.made[name]


@pytest.fixture
def resources() -> Any:
    kept = Resources()
    yield kept
    for resource in kept.made.values():
        resource.close()


def context_of(component_id: str, resources: Resources) -> TopologyContext:
    return TopologyContext(
        "topology", "generation", component_id, 0, {component_id: 1}, "commit", resources
    )


NAMELESS = Fields("tx", *(f"field-{i}" for i in range(4)))


def run_batch(
    bolt: Any,
    component_id: str,
    attempt: TransactionAttempt,
    rows: Sequence[Row],
    resources: Resources,
    fields: Fields = NAMELESS,
) -> list[Row]:
    """One attempt of one batch on one task of a fresh copy of ``bolt``; its emissions, without the
    attempt."""
    source = TupleSource("source", 0, "default", fields)
    collector = CollectedByBasicBolt()
    fresh = pickling.loads(pickling.dumps(bolt))
    tuples = [Tuple((attempt, *row), source) for row in rows]
    if isinstance(bolt, transactional_words.Bucketize | stdlib_words.Bucketize):
        for tup in tuples:
            fresh.execute(tup, collector)
    else:
        fresh.prepare(TopologyConf({}), context_of(component_id, resources), collector, attempt)
        for tup in tuples:
            fresh.execute(tup)
        fresh.finish_batch()
    assert all(row[0] == attempt for row in collector.rows)
    return [row[1:] for row in collector.rows]


def groupings(topology: Any) -> dict[str, tuple[int, list[tuple[str, GroupingKind, list[str]]]]]:
    """Component → parallelism, and for each input its source, kind and fields."""
    return {
        component.id: (
            component.parallelism,
            [(i.source, i.grouping.kind, list(i.grouping.fields or ())) for i in component.inputs],
        )
        for component in topology.components.values()
    }


def test_global_count_is_storms_topology(tmp_path: Path) -> None:
    topology = transactional_global_count.make_topology(tmp_path / "counts.db")
    assert topology.id == "global-count"
    assert groupings(topology) == {
        "spout": (3, []),
        "partial-count": (5, [("spout", "none", [])]),
        "sum": (1, [("partial-count", "global", [])]),
    }
    assert [component.id for component in topology.components.values() if component.committer] == [
        "sum"
    ]
    assert transactional_global_count.conf.max_spout_pending == 3


def test_words_is_storms_topology(tmp_path: Path) -> None:
    topology = transactional_words.make_topology(tmp_path / "words.db")
    assert topology.id == "top-n-words"
    assert groupings(topology) == {
        "spout": (2, []),
        "count": (5, [("spout", "fields", ["word"])]),
        "bucketize": (1, [("count", "none", [])]),
        "buckets": (5, [("bucketize", "fields", ["bucket"])]),
    }
    assert [component.id for component in topology.components.values() if component.committer] == [
        "count"
    ]
    assert transactional_words.conf.max_spout_pending == 3


@pytest.mark.rule(10, 28)
def test_global_count_goes_9_16_19_and_a_replay_emits_the_same_total(
    tmp_path: Path, resources: Resources
) -> None:
    store = transactional_global_count.open_store(tmp_path / "new" / "counts.db")
    batches = Drive(pickling.loads(transactional_global_count.topology.spout.template)).run()
    totals: list[Row] = []
    for txid, batch in enumerate(batches, 1):
        for n in (0, 1):
            attempt = TransactionAttempt(txid, n)
            partial = [
                run_batch(
                    transactional_global_count.BatchCount(),
                    "partial-count",
                    attempt,
                    rows,
                    resources,
                )
                for rows in batch.values()
            ]
            rows = [row for task in partial for row in task]
            totals += run_batch(
                transactional_global_count.UpdateGlobalCount(store), "sum", attempt, rows, resources
            )
    assert totals == [(9,), (9,), (16,), (16,), (19,), (19,)]
    assert store.get(transactional_global_count.GLOBAL_COUNT_KEY) == 19


@pytest.mark.rule(10)
def test_a_partial_count_of_nothing_is_a_row_with_zero(resources: Resources) -> None:
    assert run_batch(
        transactional_global_count.BatchCount(),
        "partial-count",
        TransactionAttempt(1, 0),
        [],
        resources,
    ) == [(0,)]


@pytest.mark.rule(28)
def test_words_leave_the_counts_and_buckets_of_storms_example_although_each_batch_is_replayed(
    tmp_path: Path, resources: Resources
) -> None:
    words, buckets = transactional_words.open_stores(tmp_path / "words.db")
    batches = Drive(pickling.loads(transactional_words.topology.spout.template)).run()
    changes: list[list[Row]] = []
    for txid, batch in enumerate(batches, 1):
        for n in (0, 1):
            attempt = TransactionAttempt(txid, n)
            rows = [row for partition in batch.values() for row in partition]
            counted = run_batch(
                transactional_words.KeyedCountUpdater(words), "count", attempt, rows, resources
            )
            deltas = run_batch(
                transactional_words.Bucketize(), "bucketize", attempt, counted, resources
            )
            run_batch(
                transactional_words.BucketCountUpdater(buckets),
                "buckets",
                attempt,
                deltas,
                resources,
            )
            changes.append(sorted(counted))
    assert (
        changes[0::2]
        == changes[1::2]
        == [
            [("apple", 1, None), ("cat", 5, None), ("chicken", 1, None), ("dog", 2, None)],
            [("apple", 2, 1), ("banana", 1, None), ("cat", 8, 5), ("dog", 4, 2)],
            [("dog", 7, 4)],
        ]
    )
    assert dict(words.items()) == {"cat": 8, "dog": 7, "chicken": 1, "apple": 2, "banana": 1}
    assert dict(buckets.items()) == {0: 5}
    stamped = words.inspect("cat")
    assert stamped is not None
    assert (stamped.curr, stamped.prev, stamped.txid) == (8, 5, 2)


def test_a_word_that_changes_its_bucket_leaves_the_old_one(resources: Resources) -> None:
    rows = [("new", 3, None), ("stays", 9, 1), ("moves", 25, 9), ("new and many", 30, None)]
    attempt = TransactionAttempt(1, 0)
    assert run_batch(transactional_words.Bucketize(), "bucketize", attempt, rows, resources) == [
        (0, 1),
        (2, 1),
        (0, -1),
        (3, 1),
    ]
    now_last = [(word, prev, count) for word, count, prev in rows]
    assert run_batch(stdlib_words.Bucketize(), "bucketize", attempt, now_last, resources) == [
        (1, 1),
        (3, 1),
        (0, -1),
        (4, 1),
        (3, -1),
        (4, 1),
    ]


def test_the_store_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert transactional_global_count.open_store().path == str(
        tmp_path / ".txtopo" / "global-count.db"
    )
    assert transactional_words.open_stores()[0].path == str(tmp_path / ".txtopo" / "words.db")
    assert stdlib_words.open_stores()[0].path == str(tmp_path / ".txtopo" / "demo" / "words.db")
    monkeypatch.setenv("TXTOPO_STARTER_STORE", str(tmp_path / "elsewhere" / "all.db"))
    stores = [
        transactional_global_count.open_store(),
        *transactional_words.open_stores(),
        *stdlib_words.open_stores(),
    ]
    assert {store.path for store in stores} == {str(tmp_path / "elsewhere" / "all.db")}
    assert len({store.name for store in stores}) == len(stores)
    assert (tmp_path / "elsewhere").is_dir()


def test_stdlib_files_are_sources_of_the_standard_library_and_of_no_installed_package() -> None:
    files = stdlib_words.stdlib_files()
    assert files == sorted(set(files))
    resolved = {Path(file).resolve() for file in files}
    assert Path(sqlite3.__file__).resolve() in resolved
    assert Path(pytest.__file__).resolve() not in resolved
    assert len(files) > 500


def test_stdlib_words_are_some_thirty_transactions_and_its_spout_is_light() -> None:
    drive = Drive(pickling.loads(stdlib_words.topology.spout.template))
    while drive.coordinator.is_ready():
        drive.plan()
    assert 20 <= len(drive.plans) <= 40
    assert len(drive.template) < 50_000


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small library in place of the standard one."""
    (tmp_path / "a.py").write_bytes(
        b"def spam(eggs):\r\n    return spam_1 + eggs  # Spam, caf\xc3\xa9 3rd\n"
    )
    (tmp_path / "b.py").write_bytes(b"# \xff\xe9spam\nself.eggs = {'eggs'}" + b"\nself" * 70)
    files = [str(tmp_path / "a.py"), str(tmp_path / "b.py")]
    monkeypatch.setattr(stdlib_words, "stdlib_files", lambda: files)
    return files


EXPECTED = {
    "def": 1,
    "spam": 2,
    "eggs": 4,
    "return": 1,
    "spam_1": 1,
    "Spam": 1,
    "café": 1,
    "rd": 1,
    "self": 71,
}


def run_stdlib_words(
    tmp_path: Path, sources: list[str], resources: Resources
) -> tuple[SqliteStore, SqliteStore]:
    counts, buckets = stdlib_words.open_stores(tmp_path / "words.db")
    components = stdlib_words.make_topology(tmp_path / "words.db").components
    bolts = {id: pickling.loads(component.template) for id, component in components.items()}
    spout = FileTransactionalSpout(sources, bytes_per_batch=50, partitions=2, errors="replace")
    for txid, batch in enumerate(Drive(spout).run(), 1):
        for n in (0, 1):
            attempt = TransactionAttempt(txid, n)
            rows = [row for rows in batch.values() for row in rows]
            for id in (
                "split",
                "count-of-split",
                "count",
                "bucketize",
                "buckets-of-bucketize",
                "buckets",
            ):
                above = components[id].inputs[0].source
                rows = run_batch(
                    bolts[id],
                    id,
                    attempt,
                    rows,
                    resources,
                    components[above].outputs["default"].fields,
                )
    return counts, buckets


@pytest.mark.rule(28)
def test_stdlib_words_equal_a_plain_count_after_replays(
    tmp_path: Path, sources: list[str], resources: Resources
) -> None:
    counts, buckets = run_stdlib_words(tmp_path, sources, resources)
    assert stdlib_words.independent_count() == EXPECTED
    assert dict(counts.items()) == EXPECTED
    assert {bucket: words for bucket, words in buckets.items() if words} == {0: 6, 1: 1, 2: 1, 6: 1}


def test_the_report_prints_tables_and_says_equal(
    tmp_path: Path,
    sources: list[str],
    resources: Resources,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_stdlib_words(tmp_path, sources, resources)
    monkeypatch.setenv("TXTOPO_STARTER_STORE", str(tmp_path / "words.db"))
    assert stdlib_words.main_report() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("9 words, 83 occurrences\n")
    assert (
        "   1  self                            71\n   2  eggs                             4\n"
        in printed
    )
    assert "                  1         6  " + "█" * 50 + "\n" in printed
    assert "           64 – 127         1  " in printed
    assert printed.endswith(
        "\nequal: a plain count gives the same number for each of the 9 words, and the same buckets\n"
    )


@pytest.mark.parametrize("wrong", [{"spam": 3}, {"more": 1}, {"café": None}])
def test_the_report_names_every_word_that_differs_and_is_not_equal(
    wrong: dict[str, int | None],
) -> None:
    stored = {word: count for word, count in {**EXPECTED, **wrong}.items() if count is not None}
    text, is_equal = stdlib_words.report(stored, {0: 6, 1: 1, 2: 1, 6: 1}, EXPECTED)
    assert not is_equal
    assert "NOT EQUAL: 1 of 9 words differ" in text
    assert next(iter(wrong)) in text.split("NOT EQUAL")[1]


def test_the_report_sees_wrong_buckets_and_an_empty_store() -> None:
    text, is_equal = stdlib_words.report(EXPECTED, {0: 5, 1: 1, 2: 1, 6: 1}, EXPECTED)
    assert not is_equal
    assert "NOT EQUAL: the buckets differ" in text
    assert not stdlib_words.report({}, {}, EXPECTED)[1]


@pytest.mark.parametrize(
    ("count", "bucket"), [(1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10)]
)
def test_a_bucket_is_a_power_of_two(count: int, bucket: int) -> None:
    assert stdlib_words.bucket_of(count) == bucket
