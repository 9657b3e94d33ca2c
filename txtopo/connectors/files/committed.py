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
from typing import Any, Literal, NamedTuple

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


class Position(NamedTuple):
    """A transaction in a directory."""

    generation: str
    txid: int


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
        self.form = log.form
        self._reads_all = isolation == "read_all"
        self._names: dict[str, str] = {}
        """The names of files that have had none yet, by path."""

    def __iter__(self) -> Iterator[tuple[int, list[CommittedFile]]]:
        for position, files in self.behind(None):
            yield position.txid, files

    def _of(
        self,
        generation: decisions.Generation,
        end: tuple[int, int] | None,
        after: int,
    ) -> Iterator[tuple[int, list[CommittedFile]]]:
        """One generation's transactions behind ``after``."""
        until = self._until
        if end is None and self._as_of is not None:
            last_txid = min(int(self._as_of), self._recorded(generation))
            until = last_txid if until is None else min(until, last_txid)
        waiting: decisions.Decision | None = None
        for decision in self._log.decisions(generation, after, end):
            if waiting is not None and not waiting.is_void:
                yield waiting.txid, self._files(waiting, is_settled=True)
            waiting = None if until is not None and decision.txid > until else decision
            if waiting is None:
                return
        # The last transaction of an opaque spout may still be taken back.
        is_final = end is not None or self._as_of is not None or self._reads_all
        if waiting is not None and not waiting.is_void and (is_final or not waiting.is_opaque):
            yield waiting.txid, self._files(waiting, is_settled=False)

    def _recorded(self, generation: decisions.Generation) -> int:
        """The last transaction that is recorded for the sink.

        :raises errors.StateMismatchError: the directory does not hold it.
        """
        assert self._as_of is not None
        recorded = self._as_of.stores.get(f"{generation.component}/{generation.name}")
        if recorded is None:
            return 0
        newest = self._log.newest(generation)
        last = newest[-1].position if newest else (generation.after, recorded.attempt_id)
        is_opaque = bool(newest) and newest[-1].is_opaque
        if last < (recorded.txid, recorded.attempt_id if is_opaque else 0):
            raise errors.StateMismatchError(
                f"the files in {self._log.storage.root} end at transaction {last[0]}, attempt {last[1]}, but ZooKeeper has recorded {recorded}\n"
                "  The directory was restored from an older copy. Restore the newest copy, or read without as_of."
            )
        return recorded.txid

    def _check(self, generations: list[decisions.Generation]) -> None:
        """Check that ``as_of`` and ``after`` name transactions in the directory."""
        as_of, place = self._as_of, self._log.storage.root
        newest = generations[-1] if generations else None
        ours = as_of is not None and (as_of.topology_id, as_of.generation)
        if ours and (newest is None or (newest.topology_id, newest.generation) != ours):
            raise errors.StateMismatchError(
                f"the files in {place} are of {newest and (newest.topology_id, newest.generation)}, and ZooKeeper is at {ours}\n"
                "  The directory was emptied, or has another generation. Adopt or clear the sink, or read without as_of."
            )
        for generation in generations[1:]:
            if generation.after < self._after <= generation.before[0]:
                raise errors.StateMismatchError(
                    f"{place} has two transactions {self._after}: numbers began again behind {generation.after}, after transaction"
                    f" {generation.before[0]}\n  Read from the beginning, or from after={generation.after} for the later ones."
                )

    def _files(self, decision: decisions.Decision, is_settled: bool) -> list[CommittedFile]:
        store, files = self._log.storage, []
        for file in decision.files:
            # A task that has died may have left the newest files where it wrote them.
            path = file.path
            if not is_settled and path != file.written and store.stat(path) is None:
                path = file.written
                self._names[path] = file.path
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
        """Go on for ever: wait for the next transaction where there is none.

        :raises errors.StateMismatchError: the sink was cleared meanwhile.
        """
        at: Position | None = None
        while True:
            for position, files in self.behind(at):
                at = position
                yield at.txid, files
            time.sleep(poll_s)

    def behind(self, at: Position | None) -> Iterator[tuple[Position, list[CommittedFile]]]:
        """The transactions behind ``at`` that are there now. ``None``: those behind ``after``.

        :raises errors.StateMismatchError: the sink was cleared since ``at`` was read.
        """
        spans = self._log.spans()
        if at is None:
            self._check([generation for generation, _ in spans])
        elif not any(generation.identity == at.generation for generation, _ in spans):
            raise errors.StateMismatchError(
                f"{self._log.storage.root} was cleared while it was read, at transaction {at.txid}\n  Read again from the beginning."
            )
        is_behind = at is None
        for generation, end in spans:
            is_at = at is not None and generation.identity == at.generation
            if is_at or is_behind:
                # A later generation begins where it begins.
                after = self._after if at is None else at.txid if is_at else 0
                for txid, files in self._of(generation, end, after):
                    yield Position(generation.identity, txid), files
            is_behind = is_behind or is_at

    def at(self, position: Position) -> list[CommittedFile]:
        """The files of one transaction.

        :raises errors.StateMismatchError: the directory does not hold it any more.
        """
        for generation, end in self._log.spans():
            if generation.identity == position.generation:
                for decision in self._log.decisions(generation, position.txid - 1, end):
                    if decision.txid == position.txid:
                        return self._files(decision, is_settled=False)
                    break
        raise errors.StateMismatchError(
            f"{self._log.storage.root} does not hold transaction {position.txid} any more\n"
            "  It was cleared, or restored from an older copy. Restore the newest copy, or begin again with `txtopo state reset ID`."
        )

    def to_arrow(self) -> Any:
        """All rows as one ``pyarrow.Table``, with the columns that folders name. Needs pyarrow."""
        return self.table([file for _, files in self for file in files])

    def table(self, files: Iterable[CommittedFile]) -> Any:
        """The rows in ``files``, as :meth:`to_arrow`."""
        arrow, form = importlib.import_module("pyarrow"), self.form
        tables = [self._table(arrow, file, form.kept()) for file in files]
        if tables:
            return arrow.concat_tables(tables, promote_options="permissive")
        schema = form.schema()
        return arrow.table({}) if schema is None else schema.empty_table()

    def _table(self, arrow: Any, file: CommittedFile, kept: Mapping[str, Any]) -> Any:
        columns, folders = kept["columns"], kept["partition_by"]
        schema = self.form.schema()
        if kept["format"] == "parquet":
            parquet = importlib.import_module("pyarrow.parquet")
            table = parquet.ParquetFile(io.BytesIO(self._data(file))).read()
        else:
            own = [column for column in columns if column not in folders]
            try:
                table = _of_text(arrow, kept["format"], self.text(file), own)
            except UnicodeDecodeError as error:
                raise errors.InputError(
                    f"{file.path} is not UTF-8: {error}\n  Read its bytes by text(), or write text."
                ) from None
            except (arrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
                raise errors.InputError(
                    f"a column in {file.path} has no Arrow type: {error}\n"
                    "  Read rows one by one by rows(), or write Parquet, which has types."
                ) from None
        for column in folders:
            type = arrow.string() if schema is None else schema.field(column).type
            value = arrow.scalar(file.partition[column], arrow.string()).cast(type)
            table = table.append_column(column, arrow.repeat(value, table.num_rows))
        table = table.select(columns)
        return table if schema is None else table.cast(schema)

    def rows(self, file: CommittedFile) -> Iterator[tuple[Any, ...]]:
        """The rows in a file, exactly as they were written, but for CSV and the columns that folders
        name: these are texts."""
        kept = self.form.kept()
        columns = kept["columns"]
        if kept["format"] == "json":
            for line in io.BytesIO(self.text(file)):
                row = {**json.loads(line), **file.partition}
                yield tuple(row[column] for column in columns)
        else:
            for batch in self.table([file]).to_batches():
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _data(self, file: CommittedFile) -> bytes:
        name = file.path.removeprefix(self._log.storage.root)[1:]
        data = self._log.storage.read(name)
        if data is None and name in self._names:
            data = self._log.storage.read(self._names[name])
        if data is None:
            raise errors.StateMismatchError(
                f"{file.path} is missing\n  `txtopo files verify ROOT` lists all missing files. Restore it, or read later transactions with after=."
            )
        if len(data) != file.bytes:
            raise errors.StateMismatchError(
                f"{file.path} has {len(data)} bytes, and was written with {file.bytes}\n"
                "  Restore it: `txtopo files verify ROOT` lists all such files."
            )
        return data

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
        read = csv.ReadOptions(block_size=max(len(data), 1))
        return csv.read_csv(io.BytesIO(data), read, parse, convert)
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
