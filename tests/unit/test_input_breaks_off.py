"""An input that breaks off anywhere fails its task: PySpark reports a closed socket as the end of
the input."""

from __future__ import annotations

import contextlib
import io
import struct

import pytest
from pyspark.serializers import NoOpSerializer, SpecialLengths, write_int

from txtopo import TransactionAttempt
from txtopo.dataplane import receive, wire
from txtopo.dataplane.job import Job
from txtopo.dataplane.outcome import Report
from txtopo.dataplane.spill import SpillBuffer
from txtopo.dataplane.wire import ChunkHeader, Frame

pytestmark = pytest.mark.rule(33)

COMMIT = Job("run", "commit", TransactionAttempt(1, 0), {"split": 1, "count": 1}, expected=(7,))
HELD = Frame("held", "count", 0, "", -1, b"half")
ROWS = Frame("rows", "count", 0, "split", 0, b"rows")
REPORT = Report(COMMIT.name, 0, 7)

CHUNKS = [
    wire.pack_chunk(ChunkHeader(COMMIT.name, -1, 0, 7, number=0), [HELD]),
    wire.pack_chunk(ChunkHeader(COMMIT.name, -1, 0, 7, number=1, total=2, report=REPORT), [ROWS]),
]
SOURCES = {
    "driver": (0, None, [wire.pack_frames([HELD, ROWS], wire.SEED)]),
    "driver, nothing to tell": (0, None, [b""]),
    "pinned": (
        0,
        7,
        [wire.pack_frames([HELD]), wire.pack_frames([ROWS]), wire.pack_report(REPORT)],
    ),
    "shuffle": (1, None, CHUNKS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_task_takes_the_whole_input_or_fails_wherever_the_socket_is_closed(source: str) -> None:
    sending, expected, records = SOURCES[source]
    socket = io.BytesIO()
    NoOpSerializer().dump_stream(records, socket)
    last = len(socket.getvalue())
    write_int(SpecialLengths.END_OF_DATA_SECTION, socket)
    whole = socket.getvalue()

    def taken(length: int) -> int:
        incoming = NoOpSerializer().load_stream(io.BytesIO(whole[:length]))
        with contextlib.closing(SpillBuffer(1_000)) as buffer:
            received = receive.receive(COMMIT, 0, sending, expected, incoming, buffer)
        return len(received.lanes) + len(received.held)

    for length in range(last):
        # PySpark notices a socket that is closed amid the length of a record.
        with pytest.raises((receive.MixedEmissionsError, struct.error)):
            taken(length)
    assert taken(last) == taken(len(whole)) == (0 if records == [b""] else 2)
