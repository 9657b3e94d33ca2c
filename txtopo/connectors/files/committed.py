"""Reads files that a ``FileSink`` has written: whole transactions, in order, from any of them on.

Works without Spark, ZooKeeper and the topology: the directory alone says what is committed.

Runs on: any machine that reaches the files.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import io
import json
import os
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from txtopo import errors
from txtopo.connectors.files import decisions, directories, storage
from txtopo.stores.visible import VisibleTxid

Isolation = Literal["read_committed", "read_all"]


@dataclasses.dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file with rows."""

    path: str
    """The path or address."""
    bytes: int
    rows: int
    partition: Mapping[str, str | None]
    """The columns that folders name, as texts."""

    def as_data(self) -> dict[str, Any]:
        """As JSON-able values."""
        return dataclasses.asdict(self)


class Committed:
    """The committed transactions in a directory. Iterate for ``(txid, files)``."""

    def __init__(
        self,
        log: decisions.Log,
        after: int = 0,
        until: int | None = None,
        as_of: VisibleTxid | None = None,
        isolation: Isolation = "read_committed",
    ) -> None:
        self._log, self._after, self._until, self._as_of = log, after, until, as_of
        self._reads_all = isolation == "read_all"

    def __iter__(self) -> Iterator[tuple[int, list[CommittedFile]]]:
        spans = self._log.spans()
        self._check([generation for generation, _ in spans])
        for generation, end in spans:
            bounds = [self._until, end, self._as_of if end is None else None]
            until = min((int(bound) for bound in bounds if bound is not None), default=None)
            last: decisions.Decision | None = None
            for decision in self._log.decisions(generation, self._after, until):
                if last is not None and not last.is_void:
                    yield last.txid, self._files(last, is_settled=True)
                last = decision
            # The last transaction of an opaque spout may still be taken back.
            is_final = end is not None or self._as_of is not None or self._reads_all
            if last is not None and not last.is_void and (is_final or not last.is_opaque):
                yield last.txid, self._files(last, is_settled=False)

    def _check(self, generations: list[decisions.Generation]) -> None:
        """Check that ``as_of`` and ``after`` name transactions in the directory."""
        as_of, place = self._as_of, self._log.storage.root
        newest = generations[-1] if generations else None
        if as_of is not None and newest is not None:
            theirs = newest.topology_id, newest.generation
            if theirs != (as_of.topology_id, as_of.generation):
                raise errors.StateMismatchError(
                    f"the files in {place} are of topology {newest.topology_id!r}, generation {newest.generation}, and ZooKeeper is"
                    f" at topology {as_of.topology_id!r}, generation {as_of.generation}\n  Adopt or clear the sink, or read without as_of."
                )
        for generation in generations[1:]:
            if generation.after < self._after <= generation.before:
                raise errors.StateMismatchError(
                    f"{place} has two transactions {self._after}: numbers began again behind {generation.after}, after transaction"
                    f" {generation.before}\n  Read from the beginning, or from after={generation.after} for the later ones."
                )

    def _files(self, decision: decisions.Decision, is_settled: bool) -> list[CommittedFile]:
        store, files = self._log.storage, []
        for file in decision.files:
            # A task that has died may have left the newest files where it wrote them.
            path = file.path
            if not is_settled and path != file.written and store.stat(path) is None:
                path = file.written
            folders = [part for part in file.path.split("/")[:-1] if "=" in part]
            names = [urllib.parse.unquote(part.split("=", 1)[0]) for part in folders]
            files.append(
                CommittedFile(
                    f"{store.root}{'/' if '://' in store.root else os.sep}{path}",
                    file.bytes,
                    file.rows,
                    directories.texts_in(file.path, names),
                )
            )
        return files

    def paths(self) -> list[str]:
        """The paths of all files, as for ``spark.read``."""
        return [file.path for _, files in self for file in files]

    def follow(self, poll_s: float = 1.0) -> Iterator[tuple[int, list[CommittedFile]]]:
        """Go on for ever: wait for the next transaction where there is none."""
        while True:
            for txid, files in self:
                self._after = txid
                yield txid, files
            time.sleep(poll_s)

    def to_arrow(self) -> Any:
        """All rows as one ``pyarrow.Table``, with the columns that folders name. Needs pyarrow."""
        return self.table([file for _, files in self for file in files])

    def table(self, files: Iterable[CommittedFile]) -> Any:
        """The rows in ``files``, as :meth:`to_arrow`."""
        arrow, form = importlib.import_module("pyarrow"), self._log.form
        tables = [self._table(arrow, file, form.kept()) for file in files]
        if tables:
            return arrow.concat_tables(tables, promote_options="permissive")
        schema = form.schema()
        return arrow.table({}) if schema is None else schema.empty_table()

    def _table(self, arrow: Any, file: CommittedFile, kept: Mapping[str, Any]) -> Any:
        columns, folders = kept["columns"], kept["partition_by"]
        schema = self._log.form.schema()
        if kept["format"] == "parquet":
            parquet = importlib.import_module("pyarrow.parquet")
            table = parquet.ParquetFile(io.BytesIO(self._data(file))).read()
        else:
            own = [column for column in columns if column not in folders]
            table = _of_text(arrow, kept["format"], self.text(file), own)
        for column in folders:
            type = arrow.string() if schema is None else schema.field(column).type
            value = arrow.scalar(file.partition[column], arrow.string()).cast(type)
            table = table.append_column(column, arrow.repeat(value, table.num_rows))
        return table.select(columns)

    def _data(self, file: CommittedFile) -> bytes:
        name = file.path.removeprefix(self._log.storage.root)[1:]
        return self._log.storage.read(name) or b""

    def text(self, file: CommittedFile) -> bytes:
        """The contents of a file with lines."""
        data = self._data(file)
        if file.path.endswith(".gz"):
            return gzip.decompress(data)
        if file.path.endswith(".zst"):
            arrow = importlib.import_module("pyarrow")
            return bytes(arrow.input_stream(io.BytesIO(data), compression="zstd").read())
        return data


def _of_text(arrow: Any, format: str, data: bytes, columns: list[str]) -> Any:
    text = arrow.string()
    if format == "csv":
        csv = importlib.import_module("pyarrow.csv")
        convert = csv.ConvertOptions(
            # CSV has no types.
            column_types=dict.fromkeys(columns, text),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        return csv.read_csv(io.BytesIO(data), convert_options=convert, parse_options=parse)
    lines = data.split(b"\n")[:-1]
    if format == "lines":
        return arrow.table({columns[0]: arrow.array([line.decode() for line in lines], text)})
    rows = [json.loads(line) for line in lines]
    return arrow.table({column: [row[column] for row in rows] for column in columns})


def read_committed(
    root: str | os.PathLike[str],
    *,
    after: int = 0,
    until: int | None = None,
    as_of: VisibleTxid | None = None,
    isolation: Isolation = "read_committed",
    client: Mapping[str, Any] | None = None,
) -> Committed:
    """The committed transactions in a directory that a ``FileSink`` writes, in order.

    ``for txid, files in read_committed("/data/sales", after=17): …``

    The last transaction of an opaque spout may still be taken back, and so is left out until the
    next one commits. With ``as_of`` it is there when it is recorded.

    :param after: the last transaction that was read before.
    :param until: the last transaction to read.
    :param as_of: from :func:`txtopo.visible_txid`: only transactions that are recorded.
    :param isolation: ``"read_all"`` has the last transaction in any case.
    :param client: as for the sink.
    """
    log = decisions.Log(storage.open_storage(storage.absolute(root), client or {}))
    return Committed(log, after, until, as_of, isolation)


__all__ = ["Committed", "CommittedFile", "read_committed"]
