"""Writes one task's files in one attempt at a transaction.

A file is opened with its first row, and a new one begins beyond ``roll_bytes``. The files can be
finished at any time, and more rows begin new files: a sink is held between a transaction's phases.

Runs on: executor.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import importlib
import secrets
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from txtopo import plain_json
from txtopo.connectors.files import decisions, formats
from txtopo.connectors.files.form import HOME
from txtopo.connectors.files.storage import Storage

OPEN_MAX = 64
"""How many files a task has open at once."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_NAME_MAX = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The form of the files, from the user's arguments."""

    format: str
    columns: Mapping[str, str] | None
    """The field, by column. ``None``: all fields but the first."""
    partition_by: tuple[str, ...]
    compression: str | None
    roll_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a task writes in an attempt."""

    generation: str
    number: int
    """The generation's number in the directory. Generations may have equal txids."""
    txid: int
    attempt: int
    task: int
    stay: str | None
    """The folder in which the files stay. None: they are renamed when the transaction is decided."""


class _Open:
    def __init__(self, path: str, written: str, file: IO[bytes], writer: Any) -> None:
        self.path, self.written, self.file, self.writer = path, written, file, writer
        self.rows = 0


class Share:
    """The files of a task. ``columns``: the rows' columns, with those of ``partition_by``."""

    def __init__(
        self,
        storage: Storage,
        shape: Shape,
        place: Place,
        columns: Sequence[str],
        files: Sequence[decisions.File] = (),
    ) -> None:
        self._open: dict[str, _Open] = {}
        self._storage, self._shape, self._place = storage, shape, place
        self.columns, self._files = tuple(columns), list(files)
        self._numbers = collections.Counter(file.folder for file in files)
        self._kept = [i for i, name in enumerate(self.columns) if name not in shape.partition_by]
        self._by = [(name, self.columns.index(name)) for name in shape.partition_by]
        names = [self.columns[i] for i in self._kept]
        self._header = formats.csv_line(names) if shape.format == "csv" else b""
        self._encode: Callable[[Sequence[Any]], bytes] = {
            "lines": formats.line_of,
            "csv": formats.csv_line,
        }.get(shape.format) or formats.json_encoder(names)

    def add(self, values: Sequence[Any]) -> None:
        """Add a row.

        :raises formats.RefusedError: the format has no place for a value.
        """
        folder = ""
        if self._by:
            folder = "".join(f"{folder_of(name, values[i])}/" for name, i in self._by)
            values = [values[i] for i in self._kept]
        self._add(folder, values, None, 1)

    def add_batch(self, batch: Any) -> None:
        """Add a RecordBatch with :attr:`columns`."""
        if not self._by:
            self._add("", batch, batch.schema, batch.num_rows)
            return
        compute = importlib.import_module("pyarrow.compute")
        arrow = importlib.import_module("pyarrow")
        names = [name for name, _ in self._by]
        rows = arrow.Table.from_batches([batch])
        keys = rows.select(names).group_by(names, use_threads=False).aggregate([]).to_pylist()
        for key in keys:
            wanted = None
            for name in names:
                column = batch.column(name)
                equal = (
                    compute.is_null(column)
                    if key[name] is None
                    else compute.equal(column, key[name])
                )
                wanted = equal if wanted is None else compute.and_(wanted, equal)
            part = batch.filter(wanted).select([self.columns[i] for i in self._kept])
            folder = "".join(f"{folder_of(name, key[name])}/" for name in names)
            self._add(folder, part, part.schema, part.num_rows)

    def _add(self, folder: str, rows: Any, schema: Any, count: int) -> None:
        file = self._open.get(folder)
        if file is None:
            if len(self._open) == OPEN_MAX:
                self._finish(next(iter(self._open)))
            file = self._open[folder] = self._create(folder, schema)
        file.writer.add(rows)
        file.rows += count
        if file.writer.size() >= self._shape.roll_bytes:
            self._finish(folder)

    def _create(self, folder: str, schema: Any) -> _Open:
        place, shape = self._place, self._shape
        number = self._numbers[folder]
        self._numbers[folder] += 1
        end = formats.suffix(shape.format, shape.compression)
        if place.number:
            end = f".g{place.number}{end}"
        name = f"{place.txid:020d}-{place.task:05d}{f'-{number}' if number else ''}{end}"
        path = f"{folder}{name}"
        token = secrets.token_hex(4)
        own = f"{place.txid:020d}.{place.attempt}.{place.task:05d}.{number}.{token}{end}"
        written = f"{HOME}/open/{place.generation}/{own}"
        if place.stay is not None:
            # Readers are told of the files by the decision.
            path = written = f"{place.stay}{folder}{own}"
        file = self._storage.create(written)
        writer: Any = (
            formats.ParquetWriter(file, schema, shape.compression)
            if shape.format == "parquet"
            else formats.TextWriter(file, self._encode, self._header, shape.compression)
        )
        return _Open(path, written, file, writer)

    def _finish(self, folder: str) -> None:
        open_file = self._open[folder]
        open_file.writer.finish()
        size = open_file.file.tell()
        open_file.file.close()
        del self._open[folder]
        self._files.append(
            decisions.File(open_file.path, open_file.written, size, open_file.rows, folder)
        )

    def abandon(self) -> None:
        """Close what is open. Its rows do not count."""
        while self._open:
            _, open_file = self._open.popitem()
            with contextlib.suppress(Exception):
                open_file.writer.finish()
            with contextlib.suppress(Exception):
                getattr(open_file.file, "discard", open_file.file.close)()

    __del__ = abandon

    def finish(self) -> tuple[decisions.File, ...]:
        """Finish all files, durably, and return them."""
        for folder in list(self._open):
            self._finish(folder)
        return tuple(self._files)


def folder_of(name: str, value: Any) -> str:
    """A folder's name in Hive's way: ``day=2026-11-26``.

    :raises formats.RefusedError: the value has no text that comes back.
    """
    if value is None:
        text = _NULL
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str) and value and value != _NULL and plain_json.has_utf8(value):
        text = urllib.parse.quote(value, safe=" ")
    elif isinstance(value, int) and abs(value) < 1 << 63:
        text = str(int(value))
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        text = value.isoformat()
    else:
        raise formats.RefusedError(
            f"the column {name!r} names a folder, and cannot be {value!r}; it takes None, bool, int, date and str that is not empty"
        )
    folder = f"{urllib.parse.quote(name, safe='')}={text}"
    if len(folder) > _NAME_MAX:
        raise formats.RefusedError(
            f"the column {name!r} names a folder, whose name would have {len(folder)} characters, and {_NAME_MAX} at most are possible"
        )
    return folder
