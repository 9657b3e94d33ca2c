"""A task's memory does not grow with the object that it writes or reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.s3 import S3Server
from tests.topologies.file_sinks import Writing
from tests.topologies.planned_spouts import Collected, Drive, task_context
from txtopo.connectors.files import FileSink, FileTransactionalSpout, read_committed
from txtopo.topology.transaction import TransactionAttempt

MIB = 1 << 20
OBJECT_BYTES = 2 << 30
LINE_BYTES = 1 << 16
GROWTH_MAX = 300 * MIB
"""A seventh of the object; a part has 8 MiB."""


def lines(count: int) -> Iterator[tuple[bytes]]:
    """Lines that differ, made one by one."""
    for n in range(count):
        yield (f"{n:0{LINE_BYTES - 1}d}".encode(),)


def write(root: str, client: dict[str, Any], object_bytes: int) -> int:
    """Write one object. Returns how many lines it has."""
    sink = FileSink(
        root, format="lines", columns=["account"], roll_bytes=4 * OBJECT_BYTES, client=client
    )
    count = object_bytes // LINE_BYTES
    Writing(sink).write(1, 0, ((line, 0) for (line,) in lines(count)))
    return count


class Counted(Collected):
    """Counts lines, and checks their numbers."""

    def emit(self, values: Sequence[Any], stream: str = "default") -> None:
        number, before = int(values[1][-9:]), self.attempt.txid
        assert number == before, (number, before)
        self.attempt = TransactionAttempt(before + 1, 0)


def read(path: str, client: dict[str, Any], object_bytes: int) -> int:
    """Read the lines in the first bytes of the object, in batches. Returns how many there are."""
    drive = Drive(FileTransactionalSpout(path, bytes_per_batch=16 * MIB, client=client))
    count = 0
    emitter: Any = FileTransactionalSpout(path, client=client).get_emitter(
        drive.conf, task_context()
    )
    while count * LINE_BYTES < object_bytes and drive.coordinator.is_ready():
        collector = Counted(TransactionAttempt(count, 0))
        emitter.emit_planned_partition_batch(
            TransactionAttempt(1, 0), collector, 0, drive.plan()[0]
        )
        count = collector.attempt.txid
    return count


def peak_bytes() -> int:
    """The most memory that this process has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def grown(work: Callable[..., int], place: str, small: str, client: dict[str, Any]) -> None:
    """Print by how much the memory grows when ``work`` is large, and how many lines it had."""
    work(small, client, 32 * MIB)
    before = peak_bytes()
    count = work(place, client, OBJECT_BYTES)
    print(json.dumps([peak_bytes() - before, count]))


def in_a_process(work: str, *arguments: Any) -> tuple[int, int]:
    """What :func:`grown` prints, in a process of its own."""
    program = f"from {__name__} import *; grown({work}, *{arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    growth, count = json.loads(done.stdout)
    return growth, count


@pytest.mark.thorough
def test_an_object_of_two_gib_is_written_and_read_in_a_part_of_its_size(s3: S3Server) -> None:
    root, client = s3.new_root(), s3.client
    growth, count = in_a_process("write", root, s3.new_root(), client)
    assert (count, growth < GROWTH_MAX) == (OBJECT_BYTES // LINE_BYTES, True), growth
    ((_, files),) = read_committed(root, client=client)
    assert [(file.bytes, file.rows) for file in files] == [(OBJECT_BYTES, count)]
    (path,) = (file.path for file in files)
    growth, count = in_a_process("read", path, path, client)
    assert (count, growth < GROWTH_MAX) == (OBJECT_BYTES // LINE_BYTES, True), growth
