"""Small transactions into files and into a Delta table: by a topology with a ``FileSink`` or a
``DeltaSink``, and by Structured Streaming with its own file sink or with ``foreachBatch``.

Rows are numbers that are made up. All files have one column and are read back. Spark's file sink
syncs no file, and neither does deltalake, which writes the Delta table in ``foreachBatch``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import deltalake

from bench import spouts
from bench.contenders import streaming
from bench.contenders.txtopo_runs import Runs
from bench.line import check
from bench.process import Sample
from bench.spark import peer_session
from txtopo import Config, TransactionalTopologyBuilder
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.files import FileSink, read_committed

To = Literal["files", "delta"]
_TIMEOUT_S, _LOOK_EVERY_S = 240.0, 0.005


class Topologies(Runs):
    """A spout, and a sink beside it."""

    def block(self, to: To, rows: int, transactions: int, pending: int) -> Sample:
        """``transactions`` with ``rows`` each, after some others, into a new folder."""
        id, _ = self.fresh()
        root, warm = str(self.directory / f"rows-{id}"), 2 * pending + 5
        count = warm + transactions + pending
        builder = TransactionalTopologyBuilder(id, "spout", spouts.RateSpout(rows, count))
        sink = FileSink(root) if to == "files" else DeltaSink(root)
        builder.set_bolt("write", sink).none_grouping("spout")
        sample = self.timed(
            builder.build_topology(),
            Config(max_spout_pending=pending),
            transactions,
            warm,
            pending,
        )
        written = (
            _numbers_in(read_committed(root).paths())
            if to == "files"
            else _numbers_of(deltalake.DeltaTable(root))
        )
        check(written, list(range(count * rows)))
        return sample


class Queries:
    """Structured Streaming's queries, in one session with the settings of the other lines."""

    def __init__(self, directory: str, checkpoints: str) -> None:
        self._directory, self._checkpoints, self._made = Path(directory), Path(checkpoints), 0
        # Rewriting the list of files written, every tenth batch, is put off.
        more = {"spark.sql.streaming.fileSink.log.compactInterval": "100000"}
        self._session = peer_session({**streaming.SETTINGS, **more})

    def block(self, to: To, rows: int, transactions: int, warm: int = 5) -> Sample:
        """So many micro-batches with ``rows`` each, after ``warm`` others, into a new folder."""
        self._made += 1
        root, count = self._directory / f"rows-{self._made}", warm + transactions
        reader = self._session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        writer = reader.option("numPartitions", 1).load().select("value").writeStream
        if to == "files":
            writer = writer.format("json").option("path", str(root))
            commits = [root / "_spark_metadata" / str(number) for number in range(count)]
        else:
            writer = writer.foreachBatch(_Appending(root))
            commits = [root / "_delta_log" / f"{number:020d}.json" for number in range(count)]
        checkpoint = self._checkpoints / f"{self._directory.name}-{self._made}"
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(processingTime="0 seconds").start()
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while not commits[-1].exists():
                if time.monotonic() > deadline or not query.isActive:
                    raise TimeoutError(f"no batch {count} in {_TIMEOUT_S} s: {query.exception()}")
                time.sleep(_LOOK_EVERY_S)
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        if to == "files":
            entries = (json.loads(line) for each in commits for line in _lines(each)[1:])
            written = _numbers_in(unquote(urlsplit(entry["path"]).path) for entry in entries)
        else:
            written = _numbers_of(deltalake.DeltaTable(root, version=count - 1))
        check(written, list(range(count * rows)))
        ends = [each.stat().st_mtime_ns for each in (commits[warm - 1], commits[-1])]
        return {"seconds": (ends[1] - ends[0]) / 1e9, "transactions": transactions}

    def close(self) -> None:
        """End the session. Checkpoints may be outside of the directory that goes with the line."""
        self._session.stop()
        shutil.rmtree(self._checkpoints, ignore_errors=True)


class _Appending:
    """The function for ``foreachBatch``: it appends each batch to a Delta table once, by the batch
    id in the table's log. The table stays open, since nothing else writes to it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._table: deltalake.DeltaTable | None = None

    def __call__(self, frame: Any, batch: int) -> None:
        table = self._table
        if table is not None and batch <= (table.transaction_version("query") or 0):
            return
        once = [deltalake.Transaction("query", batch)]
        deltalake.write_deltalake(
            self._root if table is None else table,
            frame.toArrow(),
            mode="append",
            commit_properties=deltalake.CommitProperties(app_transactions=once),
        )
        self._table = table or deltalake.DeltaTable(self._root)


def _numbers_in(paths: Iterable[str]) -> list[int]:
    return sorted(json.loads(line)["value"] for path in paths for line in _lines(Path(path)))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _numbers_of(table: deltalake.DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["value"].to_pylist())
