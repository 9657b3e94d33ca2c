"""Rows into files, batch by batch, in one process without Spark: by a ``FileSink``, as its task
writes them, and by hand, into files with the same bytes.

By hand there is no decision for readers: a second run writes the batch twice. In an object store
the way by hand puts one small object and lists a folder beside each file, as a decision does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import obstore.store
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from bench.contenders import bare_loop
from bench.line import WrongResultError
from bench.process import Sample
from tests.servers.s3 import S3Server
from txtopo import Fields, TopologyConf, TransactionAttempt, Tuple
from txtopo.connectors.files import FileSink, objects, read_committed
from txtopo.connectors.files.parquet import ROWS_AT_ONCE
from txtopo.connectors.files.storage import Storage
from txtopo.dataplane import worker
from txtopo.topology.stream import TupleSource

COLUMNS = ("id", "name", "cents")
_ROW_GROUP_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 16
_LOG = "log"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Writes:
    """Both ways, into new folders of a directory or, with ``on_s3``, of an S3 server."""

    def __init__(self, directory: str, on_s3: bool = False) -> None:
        self._directory, self._made = Path(directory), 0
        self._closing = contextlib.ExitStack()
        self._server = self._closing.enter_context(S3Server()) if on_s3 else None

    def block(self, by: str, format: Literal["json", "parquet"], rows: int, batches: int) -> Sample:
        """``batches`` of ``rows`` each, one after another. ``by``: sink or hand. A first batch,
        which makes folders and connections, is not timed."""
        self._made += 1
        root, client, store = str(self._directory / f"rows-{self._made}"), {}, None
        if self._server is not None:
            root, client = self._server.new_root(), self._server.client
            settings: Any = objects.config(root, client)
            store = obstore.store.from_url(
                root, config=settings, client_options={"allow_http": True}
            )
        tables = [_table(number * rows, rows) for number in range(batches + 1)]
        prepared: list[Any] = [_prepared(table, format) for table in tables]
        if by == "sink":
            writing = by_sink(FileSink(root, format=format, client=client), prepared, {})
        elif store is None:
            writing = _into_directory(root, format, prepared)
        else:
            writing = _into_store(store, format, prepared)
        with worker.seldom_collected():
            next(writing)
            began = time.perf_counter()
            for _ in writing:
                pass
            seconds = time.perf_counter() - began
        paths = (
            [path.removeprefix(f"{root}/") for path in read_committed(root, client=client).paths()]
            if by == "sink"
            else [_name(number, format) for number in range(batches + 1)]
        )
        files = [
            Path(root, path).read_bytes()
            if store is None
            else bytes(obstore.get(store, path).bytes())
            for path in paths
        ]
        _check(files, format, tables)
        return {
            "seconds": seconds,
            "rows_per_second": rows * batches / seconds,
            "contents": hashlib.sha256(b"".join(files)).hexdigest(),
        }

    def close(self) -> None:
        """Stop the server."""
        self._closing.close()


class Calls:
    """How often a transaction asks the storage of a ``FileSink``."""

    def __init__(self, directory: str) -> None:
        self._directory, self._made = Path(directory), 0

    def block(self, transactions: int) -> Sample:
        """The calls per transaction, by name, of one task in a directory. A first transaction is
        not counted."""
        self._made += 1
        root, resources = str(self._directory / f"rows-{self._made}"), dict[str, Any]()
        sink, counts = FileSink(root), Counter[str]()
        tables = [_table(number, 1) for number in range(transactions + 1)]
        writing = by_sink(sink, [_prepared(table, "json") for table in tables], resources)
        next(writing)
        storage = sink.ledger.log(bare_loop.context("write", "commit", resources).resource).storage
        for name in Storage.__abstractmethods__:
            setattr(storage, name, _counted(counts, name, getattr(storage, name)))
        began = time.perf_counter()
        for _ in writing:
            pass
        seconds = time.perf_counter() - began
        files = [Path(path).read_bytes() for path in read_committed(root).paths()]
        _check(files, "json", tables)
        per_transaction = {name: count / transactions for name, count in counts.items()}
        return {"seconds": seconds, "calls": per_transaction}

    def close(self) -> None:
        """Nothing is left open."""


def _counted(counts: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        counts[name] += 1
        return call(*arguments)

    return counted


def by_sink(sink: FileSink, prepared: Sequence[Any], resources: dict[str, Any]) -> Iterator[None]:
    """Write each of ``prepared``, rows or RecordBatches, in a transaction with one task."""
    source, conf = TupleSource("sales", 0, "default", Fields("tx", *COLUMNS)), TopologyConf({})
    for txid, batch in enumerate(prepared, 1):
        attempt = TransactionAttempt(txid, 0)
        context = bare_loop.context("write", "commit", resources)
        sink.prepare(conf, context, bare_loop.Collected(), attempt)
        if sink.takes_columns:
            for columns in batch:
                sink.execute_batch(columns)
        else:
            for row in batch:
                sink.execute(Tuple((attempt, *row), source))
        sink.finish_batch()
        yield


def _into_directory(root: str, format: str, prepared: Sequence[Any]) -> Iterator[None]:
    """By hand, each file synced, and its directory too."""
    os.mkdir(root)
    directory = os.open(root, os.O_RDONLY)
    try:
        for number, batch in enumerate(prepared):
            with open(os.path.join(root, _name(number, format)), "xb", _BUFFER_BYTES) as file:
                _write(file, format, batch)
                file.flush()
                os.fsync(file.fileno())
            os.fsync(directory)
            yield
    finally:
        os.close(directory)


def _into_store(store: Any, format: str, prepared: Sequence[Any]) -> Iterator[None]:
    """By hand, each file beside a small object and a listing."""
    for number, batch in enumerate(prepared):
        file, name = io.BytesIO(), _name(number, format)
        _write(file, format, batch)
        file.seek(0)
        obstore.put(store, name, file)
        list(obstore.list(store, _LOG, offset=f"{_LOG}/{_name(number - 1, 'json')}"))
        obstore.put(store, f"{_LOG}/{_name(number, 'json')}", b"{}", mode="create")
        yield


def _write(file: IO[bytes], format: str, batch: Any) -> None:
    if format == "parquet":
        pq.write_table(pa.Table.from_batches(batch), file, row_group_size=_ROW_GROUP_ROWS)
    else:
        for id, name, cents in batch:
            file.write(_encode({"id": id, "name": name, "cents": cents}).encode() + b"\n")


def _name(number: int, format: str) -> str:
    return f"{number:020d}.{format}"


@functools.cache
def _table(start: int, rows: int) -> Any:
    numbers = range(start, start + rows)
    arrays = [
        pa.array(numbers),
        pa.array([f"an article with a long name {number:09d}" for number in numbers]),
        pa.array([number % 1000 for number in numbers]),
    ]
    return pa.table(dict(zip(COLUMNS, arrays, strict=True)))


def _prepared(table: Any, format: str) -> list[Any]:
    """The rows as a task gets them."""
    if format == "parquet":
        return list(table.to_batches(max_chunksize=ROWS_AT_ONCE))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _check(files: Sequence[bytes], format: str, tables: Sequence[Any]) -> None:
    """Refuse files that do not hold the rows of ``tables``, in their order."""
    read = pq.read_table if format == "parquet" else pa.json.read_json
    rows = pa.concat_tables([read(pa.BufferReader(data)) for data in files])
    if not rows.equals(pa.concat_tables(tables)):
        raise WrongResultError(f"{rows.num_rows} {format} rows, not those that were given")
