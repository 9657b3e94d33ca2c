"""Appends a batch's tuples to a Delta table, each transaction in one commit (R28 to R31).

``DeltaSink`` is a ``FileSink`` whose files are found through a Delta table. Tasks write Parquet files
into the table's folders, and one record decides, as for all files. Then the table gets one commit.

Runs on: executor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.connectors.delta import table
from txtopo.connectors.files import decisions, file_ledger, sink, storage
from txtopo.topology import arrow


class DeltaSink(sink.FileSink):
    """A committer that appends every tuple as a row to a Delta table. The rows that all tasks have
    in a transaction are one commit.

    ``builder.set_bolt("write", DeltaSink("/data/sales", partition_by=["day"]),
    2).shuffle_grouping("prices")``

    Takes RecordBatches as they are. Needs deltalake: ``pip install 'txtopo[delta]'``.

    :param uri: a directory on this machine, or ``s3://``, ``gs://`` or ``az://`` with bucket and
        folder. The table is made with the first rows, unless it is there. Others may write to the
        table, too.
    :param columns: the fields to write. Give ``{column: field}`` if the names differ. If not given,
        all fields except the attempt.
    :param partition_by: the table's partition columns.
    :param opaque: for an opaque spout: a replay takes a failed attempt's rows back, in one commit.
    :param compact_every: how many transactions pass before the table's small files are put together
        by the sink. Never, if not given.
    :param name: the name by which the topology's state knows the sink, as ``component/name``.
    :param client: settings for the library that reaches ``uri``, as for ``FileSink``.

    :raises errors.ConfigError: an impossible argument.
    """

    ledger: DeltaLedger
    kept_in = "table"
    keeps_rows = True

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        opaque: bool = False,
        compact_every: int | None = None,
        schema: Any = None,
        name: str = "delta",
        client: Mapping[str, Any] | None = None,
    ) -> None:
        arrow.require("deltalake", "DeltaSink", "delta")
        super().__init__(
            uri,
            format="parquet",
            columns=columns,
            partition_by=partition_by,
            schema=schema,
            opaque=opaque,
            name=name,
            client=client,
        )
        if compact_every is not None and (not isinstance(compact_every, int) or compact_every < 1):
            raise errors.ConfigError(
                f"DeltaSink: compact_every is {compact_every!r}\n  Give a number of transactions."
            )
        if self.ledger.root.startswith("hdfs://") or "%" in self.ledger.root:
            raise errors.ConfigError(
                f"DeltaSink: deltalake reaches no table at {self.ledger.root}\n"
                "  Give a directory without a percent sign, or an address with s3://, gs:// or az://."
            )
        self.ledger = DeltaLedger(self.ledger.root, name, opaque, client or {}, compact_every)


class DeltaLedger(file_ledger.FileLedger):
    """The decisions beside the Delta table ``root``, and the table.

    The simulator plays the decisions alone: it has no table.
    """

    kind = "DeltaSink"

    def __init__(
        self,
        root: str,
        name: str,
        is_opaque: bool,
        client: Mapping[str, Any],
        compact_every: int | None,
    ) -> None:
        super().__init__(root, name, is_opaque, False, client)
        self.tells_late = False
        self._compact_every = compact_every

    def kept(self, topology_id: str, component: str) -> table.DeltaRecords:
        return table.DeltaRecords(self.root, self.name, self.client)

    def _table(self) -> table.Table:
        return table.Table(self.root, self.client, self._compact_every, self.opaque)

    def rows_left(self, topology_id: str) -> str:
        is_left = bool(self.kept(topology_id, "").fences()) and self._table().holds_rows()
        return self.root if is_left else ""

    def stay(self, store: storage.Storage, generation: str) -> str:
        return ""

    def check(self, log: decisions.Log) -> None:
        if log.form.kept() and not storage.is_table(log.storage):
            raise errors.StateMismatchError(
                f"there is no Delta table in {self.root}, and rows were written there before\n"
                "  The table was removed, or another sink writes there. Restore the table, give another folder, or use `txtopo reset TARGET`."
            )

    def check_again(self, log: decisions.Log) -> None:
        self._table().check(log)

    def missing(self, log: decisions.Log, pieces: list[decisions.Piece]) -> list[decisions.Piece]:
        return [
            each
            for each in pieces
            if any(log.storage.stat(file.path) is None for file in each.files)
        ]

    def begin(self, schema: Any, partition_by: Sequence[str]) -> None:
        self._table().begin(schema, partition_by)

    def tell(
        self,
        log: decisions.Log,
        generation: decisions.Generation,
        decided: decisions.Decision,
        earlier: Sequence[decisions.Decision],
        share: slice | None = None,
    ) -> None:
        is_late = share is not None or decided.is_void
        self._table().commit(log, generation, decided, earlier, is_late)
