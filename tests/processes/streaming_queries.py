"""Queries of Structured Streaming that write to a sink, in a driver that a test may kill between
the sink's commit and the checkpoint's, or earlier.

``python -m tests.processes.streaming_queries DIRECTORY PARTITIONS HELD ADDRESS …`` runs, for each
address of a shop, of a broker or of files, one query with ``foreachBatch`` into its table, topic or
folder ``sales`` and one with ``foreach`` into ``sold``, side by side, over the files in
``DIRECTORY/input``, a micro-batch per file. If ``HELD`` is a batch id, each query stops when the
sink has committed that batch, of the second one a single partition; when all have, the driver kills
its JVM and itself. Queries that write to files stop at the moment in their address.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, OutOfPatience, wait_until
from tests.quick_java import QUICK_JAVA
from txtopo.connectors.delta import DeltaSink
from txtopo.connectors.delta.sink import DeltaLedger
from txtopo.connectors.files import FileSink
from txtopo.connectors.files.file_ledger import FileLedger
from txtopo.connectors.kafka import KafkaSink
from txtopo.connectors.sql import SqlSink
from txtopo.sinks.sink import Sink
from txtopo.sinks.streaming import ForeachWriter

KAFKA = "kafka://"
"""How the address of a broker begins."""
FILES = ("files", "delta")
"""How the address of files begins. The moment and a directory follow, each behind a colon."""
MOMENTS = ("before", "pieces", "decided", "after")
"""Before the query calls the sink; when the batch is whole; when it is decided, and readers are not
told; when the sink has returned."""

ROOT = Path(__file__).parents[2]
BATCHES = 4
EMPTY = 2
"""The batch without rows."""
ROWS = 30
WRITERS = 3
"""How many partitions the query with ``foreach`` has."""


def write_input(directory: Path) -> list[tuple[int, int]]:
    """The files of the queries; returns their rows."""
    (directory / "input").mkdir()
    rows = [(number, 10 * number) for number in range((BATCHES - 1) * ROWS)]
    for batch in range(BATCHES):
        begin = (batch - (batch > EMPTY)) * ROWS
        lines = [
            json.dumps({"id": number, "cents": cents})
            for number, cents in rows[begin : begin + (batch != EMPTY) * ROWS]
        ]
        path = directory / "input" / f"{batch}.json"
        path.write_text("\n".join(lines))
        # Spark reads the oldest first.
        os.utime(path, (1_000_000 + batch, 1_000_000 + batch))
    return rows


def drive(
    directory: Path, partitions: int, addresses: list[str], held: int = -1
) -> subprocess.CompletedProcess[str]:
    """Run a driver to its end."""
    command = [
        sys.executable,
        "-m",
        "tests.processes.streaming_queries",
        str(directory),
        str(partitions),
        str(held),
        *addresses,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


class Hold:
    """Where a query waits for the end of the driver: leaves a file, and does not go on."""

    def __init__(self, directory: Path, name: str, batch: int, moment: str) -> None:
        self.file, self.at = directory / f"held-{name}", (batch, moment)

    def reach(self, batch: int, moment: str) -> None:
        """Wait, if this is the moment."""
        if (batch, moment) == self.at:
            self.file.touch()
            threading.Event().wait()


class HeldWriter(ForeachWriter):
    """A query that holds before or after its partition 0 is committed."""

    def __init__(self, writer: ForeachWriter, hold: Hold) -> None:
        vars(self).update(vars(writer))
        self.hold = hold

    def close(self, error: Exception | None) -> None:
        partition, epoch = self._opened.task_index, self._epoch
        if partition == 0:
            self.hold.reach(epoch, "before")
        super().close(error)
        if partition == 0:
            self.hold.reach(epoch, "after")


class HeldLedger(FileLedger):
    """Files that hold before or after a batch is decided."""

    def __init__(self, ledger: FileLedger, hold: Hold) -> None:
        vars(self).update(vars(ledger))
        self.hold = hold

    def apply(self, context: Any, attempt: Any, *more: Any, **named: Any) -> bool:
        self.batch = attempt.txid - 1
        return super().apply(context, attempt, *more, **named)

    def check_again(self, log: Any) -> None:
        super().check_again(log)
        self.hold.reach(self.batch, "pieces")

    def tell(self, *arguments: Any) -> None:
        self.hold.reach(self.batch, "decided")
        super().tell(*arguments)


class HeldTable(HeldLedger, DeltaLedger):
    """The same for a Delta table."""


def sink_at(address: str, name: str, hold: Hold) -> Sink:
    """The sink into the table, topic or folder ``name``."""
    kind, _, place = address.partition(":")
    if kind in FILES:
        root = f"{place.partition(':')[2]}/{name}"
        files = FileSink(root) if kind == "files" else DeltaSink(root)
        held = HeldLedger if kind == "files" else HeldTable
        files.ledger = held(files.ledger, hold)
        return files
    if not address.startswith(KAFKA):
        return SqlSink(address, name, ["id", "cents"])
    return KafkaSink(address.removeprefix(KAFKA), name, key="id", format="json")


def run(directory: Path, partitions: int, held: int, addresses: list[str]) -> None:
    """Run in the driver process."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[6]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(partitions))
        .getOrCreate()
    )
    files = (
        spark.readStream.schema("id INT, cents INT")
        .option("maxFilesPerTrigger", 1)
        .json(str(directory / "input"))
    )
    holds, queries = [], []
    for number, address in enumerate(addresses):
        moment = address.split(":")[1] if address.startswith(FILES) else "after"
        batches, writers = (
            Hold(directory, f"{name}-{number}", held, moment) for name in ("sales", "sold")
        )
        sales, sold = sink_at(address, "sales", batches), sink_at(address, "sold", writers)
        whole = sales.foreach_batch("sales")

        def write(frame: Any, batch: int, whole: Any = whole, hold: Hold = batches) -> None:
            hold.reach(batch, "before")
            whole(frame, batch)
            hold.reach(batch, "after")

        parts = HeldWriter(sold.foreach_writer("sold", partitions=WRITERS), writers)
        for name, writer in (
            ("sales", files.repartition(partitions).writeStream.foreachBatch(write)),
            ("sold", files.repartition(WRITERS, "id").writeStream.foreach(parts)),
        ):
            checkpoint = str(directory / f"checkpoint-{name}-{number}")
            queries.append(
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
        holds += [batches, writers]
    if held >= 0:
        _die_when_all_hold(spark, [hold.file for hold in holds])
    for query in queries:
        if not query.awaitTermination(int(PATIENCE_S)):
            raise OutOfPatience(f"a query has not ended: {query.status}")
    spark.stop()


def _die_when_all_hold(spark: Any, files: list[Path]) -> None:
    wait_until(lambda: all(file.exists() for file in files), "all queries to hold")
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
