"""``make kafka-demo``: from topic to topic on a real Kafka broker, killed in the middle, and each
line is there once.

The lines are those of the standard library's sources. A consumer of confluent-kafka's, with
settings of its own, reads the committed records at the end, and compares them one by one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.patience import PATIENCE_S, wait_until
from tests.servers.kafka import KafkaServer
from txtopo.demo import stdlib_words

PARTITIONS = 4
TOPOLOGY = Path(__file__).parent / "topologies" / "kafka_lines.py"
TARGET = "numbered-lines"


def lines_by_partition(files: int | None) -> list[list[bytes]]:
    """The lines of the first ``files`` sources, dealt out file by file."""
    lines: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number, path in enumerate(stdlib_words.stdlib_files()[:files]):
        lines[number % PARTITIONS] += Path(path).read_bytes().splitlines()
    return lines


def killed(command: list[str], environment: dict[str, str], kafka: KafkaServer, until: int) -> None:
    """Start ``command``, which does not end by itself, and kill it once the target has ``until``
    offsets, markers of transactions included."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "demo"})
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def is_in_the_middle() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the topology ended by itself, with exit code {process.returncode}")
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TARGET, partition), PATIENCE_S)[1]
            for partition in range(PARTITIONS)
        ]
        return bool(sum(ends) >= until)

    try:
        wait_until(is_in_the_middle, f"{until} offsets of topic {TARGET}")
    finally:
        process.kill()
        process.wait()
        consumer.close()


def is_each_there_once(lines: list[list[bytes]], records: Sequence[Sequence[bytes | None]]) -> bool:
    """Whether ``records`` are the ``lines``, numbered, partition by partition."""
    return records == [
        [b"%d %s" % (offset, line) for offset, line in enumerate(some)] for some in lines
    ]


def main(files: int | None = None) -> int:
    """0 if every line is in the target once and in order."""
    lines = lines_by_partition(files)
    total = sum(map(len, lines))
    with KafkaServer() as kafka, tempfile.TemporaryDirectory(prefix="txtopo-kafka-demo-") as place:
        kafka.new_topic("lines", PARTITIONS)
        kafka.new_topic(TARGET, PARTITIONS)
        for partition, some in enumerate(lines):
            kafka.produce("lines", some, partition)
        print(
            f"topic lines: {total:,} lines of the standard library in {PARTITIONS} partitions, at {kafka.servers}",
            flush=True,
        )
        command = [
            sys.executable,
            "-m",
            "txtopo",
            "run",
            str(TOPOLOGY),
            "--master",
            "local[2]",
            "--data-dir",
            place,
        ]
        environment = {
            **os.environ,
            "KAFKA_SERVERS": kafka.servers,
            "LINES_FROM": "lines",
            "LINES_TO": TARGET,
        }
        killed(command, environment, kafka, total // 3)
        print(
            f"kill -9 of the running topology: topic {TARGET} has {len(kafka.read(TARGET)):,} committed lines",
            flush=True,
        )
        subprocess.run([*command, "--until-exhausted"], env=environment, check=True)
        records: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        for record in kafka.read(TARGET):
            records[record.partition].append(record.value)
        print(
            f"topic {TARGET}: {sum(map(len, records)):,} committed lines, as a read_committed consumer sees them"
        )
    is_equal = is_each_there_once(lines, records)
    print(
        "equal: every line is there once, and in order"
        if is_equal
        else "NOT EQUAL: lines are missing, there twice, or out of order"
    )
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
