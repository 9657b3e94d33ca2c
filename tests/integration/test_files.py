"""Text and JSON files through real Spark, and all that can be wrong with such files."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast, run_to_idle
from txtopo import (
    BaseBasicBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    Fields,
    ICommitter,
    InputError,
    LocalCluster,
    OutputFieldsDeclarer,
    TopologyConf,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txtopo.connectors.files import FileTransactionalSpout
from txtopo.stores import SqliteStore


class Words(BaseBasicBolt):
    """Splits lines."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup["line"].split():
            collector.emit([tup[0], word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(Fields("tx", "word"))


class Count(BaseTransactionalBolt, ICommitter):
    """Counts field 1."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def prepare(
        self,
        conf: TopologyConf,
        context: TopologyContext,
        collector: BatchOutputCollector,
        attempt: TransactionAttempt,
    ) -> None:
        self.context, self.attempt = context, attempt
        self.counts: collections.Counter[str] = collections.Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup[1]] += 1

    def finish_batch(self) -> None:
        with self.store.transaction(self.context, self.attempt) as transaction:
            transaction.update_many(dict(self.counts), lambda old, new: (old or 0) + new)


def topology_over(id: str, spout: Any, store: SqliteStore) -> Any:
    """lines → words → count."""
    builder = TransactionalTopologyBuilder(id, "lines", spout, 2)
    builder.set_bolt("words", Words(), 2).none_grouping("lines")
    builder.set_bolt("count", Count(store), 2).fields_grouping("words", Fields("word"))
    return builder.build_topology()


def write_files(directory: Path, files: int = 5, lines: int = 50) -> collections.Counter[str]:
    """Some text; returns its word counts."""
    counts: collections.Counter[str] = collections.Counter()
    for f in range(files):
        text = [f"word{n % 7} file{f} line{n}" for n in range(lines)]
        (directory / f"{f}.txt").write_text("\n".join(text) + ("\n" if f % 2 else ""))
        counts.update(" ".join(text).split())
    return counts


@pytest.mark.rule(18, 20, 23)
def test_text_files_are_counted_completely_and_a_second_run_finds_nothing_new(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    expected = write_files(tmp_path)
    store = SqliteStore(tmp_path / "counts.db", "counts")
    spout = FileTransactionalSpout(str(tmp_path / "*.txt"), bytes_per_batch=700, partitions=2)
    topology = topology_over("files", spout, store)
    run = run_to_idle(cluster, topology, max_spout_pending=3)
    assert dict(store.items()) == expected
    assert run.status().committed >= 3
    assert run_to_idle(cluster, topology).status().committed == 0


def test_json_lines(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"id": n, "name": f"n{n % 3}"}) + "\n" for n in range(20))
    )
    store = SqliteStore(tmp_path / "counts.db", "counts")
    spout = FileTransactionalSpout(
        tmp_path / "a.jsonl", bytes_per_batch=100, fields=("name", "id"), format="json"
    )
    builder = TransactionalTopologyBuilder("json-lines", "rows", spout)
    builder.set_bolt("count", Count(store)).shuffle_grouping("rows")
    run_to_idle(cluster, builder.build_topology())
    assert dict(store.items()) == {"n0": 7, "n1": 7, "n2": 6}


def test_missing_input_is_found_before_anything_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "counts.db", "counts")

    def submit() -> None:
        topology = topology_over(
            "missing", FileTransactionalSpout(str(tmp_path / "no-such-*.txt")), store
        )
        cluster.submit_topology("missing", fast(), topology)

    with pytest.raises(InputError, match=r"no-such") as caught:
        submit()
    assert caught.value.exit_code == 2
    assert not store.exists()


def test_a_file_that_is_not_utf_8_stops_the_run_under_strict_and_names_file_and_byte(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good line\nbad \xff line\n")
    store = SqliteStore(tmp_path / "counts.db", "counts")
    run = cluster.submit_topology(
        "not-utf-8",
        fast(),
        topology_over("not-utf-8", FileTransactionalSpout(tmp_path / "bad.txt"), store),
    )
    with pytest.raises(InputError, match=r"bad\.txt.*\b14\b") as caught:
        run.join(PATIENCE_S)
    assert caught.value.exit_code == 2
    assert dict(store.items()) == {}


def test_a_file_that_shrank_after_it_was_planned_stops_the_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    write_files(tmp_path, files=1, lines=200)
    store = SqliteStore(tmp_path / "counts.db", "counts")
    spout = FileTransactionalSpout(str(tmp_path / "*.txt"), bytes_per_batch=500)
    topology = topology_over("shrinks", spout, store)
    run = cluster.submit_topology("shrinks", fast(max_transactions=2), topology)
    run.join(PATIENCE_S)
    with (tmp_path / "0.txt").open("r+b") as file:
        file.truncate(300)
    with pytest.raises(InputError, match=r"0\.txt"):
        cluster.submit_topology("shrinks", fast(), topology).join(PATIENCE_S)
