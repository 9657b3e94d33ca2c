"""Workers, drivers and the broker are killed at random while a topology copies lines from topic to
topic: each line is there once, and in order.

The kills come from a seed, which is printed. The races of the processes do not.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.kafka_demo import PARTITIONS, TOPOLOGY, is_each_there_once
from tests.patience import PATIENCE_S, wait_until
from tests.processes import owners
from tests.servers.kafka import KafkaServer
from tests.soak import processes

KILLS = int(os.environ.get("TEST_KAFKA_KILLS", "200"))
SEED = int(os.environ.get("TEST_KAFKA_SEED") or random.SystemRandom().getrandbits(32))
WEIGHTS = {"worker": 16, "driver": 3, "broker": 1}
AT_ONCE = 50
"""Lines of each partition in a transaction, at most."""
LEAD = 20 * PARTITIONS * AT_ONCE
"""At least so many lines are not committed when a process is killed."""
LINES_FROM, LINES_TO, AUXILIARY = "soak-lines", "soak-numbered-lines", "txtopo.kafka-demo.write"


class Soak:
    """A run of ``txtopo run`` between two topics. A consumer follows the committed lines."""

    def __init__(self, kafka: KafkaServer, place: Path) -> None:
        self._kafka, self._place = kafka, place
        self._dice = random.Random(SEED)
        self._command = [
            *(sys.executable, "-m", "txtopo", "run", str(TOPOLOGY), "--master", "local[2]"),
            *("--data-dir", str(place / "state"), "--set", "max_crashes=100000"),
        ]
        self._environment = {
            **os.environ,
            "KAFKA_SERVERS": kafka.servers,
            "LINES_FROM": LINES_FROM,
            "LINES_TO": LINES_TO,
            "LINES_AT_ONCE": str(AT_ONCE),
        }
        self._log = place / "driver.log"
        self._seen: set[processes.Process] = set()
        self.lines: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._committed = [0] * PARTITIONS
        self.tally: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for topic in (LINES_FROM, LINES_TO):
            self._kafka.new_topic(topic, PARTITIONS)
        settings = {"group.id": "soak", "isolation.level": "read_committed", "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": self._kafka.servers, **settings})
        self._consumer.assign([TopicPartition(LINES_TO, n, 0) for n in range(PARTITIONS)])
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill_all()
        processes.end(self._seen)
        self._consumer.close()

    def strike(self) -> None:
        """Wait for a random moment, and kill or stop a random process."""
        (kind,) = self._dice.choices([*WEIGHTS], [*WEIGHTS.values()])
        # A driver that starts without a broker ends: it must have committed before the broker dies.
        count = self._dice.choice((0, 1, AT_ONCE, 4 * AT_ONCE)) + (kind == "broker")
        before = sum(self._committed)
        self._wait_until(lambda: sum(self._committed) >= before + count, f"{count} lines more")
        self._follow(self._dice.random())
        strikes: dict[str, Callable[[], str]] = {
            "worker": self._kill_worker,
            "driver": self._kill_driver,
            "broker": self._dice.choice((self._kill_broker, self._pause_broker)),
        }
        deed = strikes[kind]()
        self.tally[deed] += 1
        print(f"{self.tally.total()}: {deed}, {sum(self._committed):,} lines committed", flush=True)

    def finish(self) -> list[list[bytes | None]]:
        """Have a last driver commit all lines, and return the committed lines."""
        self._kill_all()
        with self._log.open("ab") as log:
            subprocess.run(
                [*self._command, "--until-exhausted"],
                env=self._environment,
                stdout=log,
                stderr=log,
                timeout=2 * PATIENCE_S,
                check=True,
            )
        self._kafka.wait_until_settled(LINES_TO)
        records: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        for record in self._kafka.read(LINES_TO):
            records[record.partition].append(record.value)
        return records

    # -- what is struck ----------------------------------------------------------------------------

    def _kill_worker(self) -> str:
        victims: list[processes.Process] = []

        def is_struck() -> bool:
            workers = processes.workers(self._below())
            victims[:] = [self._dice.choice(workers)] if workers else []
            return bool(victims) and victims[0].send(signal.SIGKILL)

        self._wait_until(is_struck, "a worker")
        return "worker killed"

    def _kill_driver(self) -> str:
        self._kill_all()
        self._start()
        return "driver killed"

    def _kill_broker(self) -> str:
        stopped: list[processes.Process] = []

        def is_settled() -> bool:
            # A broker that is killed before it has written all markers of a commit may forget them.
            stopped[:] = [each for each in self._below() if each.kind == "python"]
            for process in stopped:
                process.send(signal.SIGSTOP)
                owners.wait_until_suspended(process.pid)
            if all(map(self._kafka.is_settled, (LINES_TO, AUXILIARY))):
                return True
            go_on()
            return False

        def go_on() -> None:
            for process in stopped:
                process.send(signal.SIGCONT)

        self._wait_until(is_settled, "a moment without a transaction")
        self._kafka.kill()
        go_on()
        self._kafka.start()
        return "broker killed"

    def _pause_broker(self) -> str:
        self._kafka.pause()
        for _ in range(self._dice.randint(1, 4)):
            with pytest.raises(KafkaException):
                self._kafka.admin.list_topics(timeout=1.0)
        self._kafka.resume()
        return "broker stopped"

    # -- the run -----------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )

    def _below(self) -> list[processes.Process]:
        living = processes.below(self._process.pid)
        self._seen.update(living)
        return living

    def _kill_all(self) -> None:
        """Kill the driver with all its children."""
        children = self._below()
        self._process.kill()
        processes.end(set(children))
        self._process.wait(PATIENCE_S)

    def _follow(self, wait_s: float) -> None:
        """Compare the lines that were committed meanwhile, and see to it that enough are left."""
        for message in self._consumer.consume(10_000, wait_s):
            if message.error() is None:
                partition = message.partition()
                number = self._committed[partition]
                assert message.value() == b"%d %s" % (number, self.lines[partition][number])
                self._committed[partition] += 1
        while sum(map(len, self.lines)) < sum(self._committed) + LEAD:
            for partition, lines in enumerate(self.lines):
                begin = len(lines)
                more = [b"%d-%d" % (partition, n) for n in range(begin, begin + 10 * AT_ONCE)]
                self._kafka.produce(LINES_FROM, more, partition)
                lines += more
        assert self._process.poll() is None, self._log.read_text()[-10_000:]

    def _wait_until(self, condition: Callable[[], bool], event: str) -> None:
        def is_met() -> bool:
            self._follow(0.0)
            return condition()

        wait_until(is_met, event)


@pytest.mark.thorough
@pytest.mark.timeout(4 * 3600)
@pytest.mark.rule(6, 23, 28, 29, 40)
def test_workers_drivers_and_the_broker_are_killed_at_random_and_each_line_is_there_once(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    print(f"again: TEST_KAFKA_SEED={SEED} TEST_KAFKA_KILLS={KILLS}", flush=True)
    with Soak(kafka, tmp_path) as soak:
        while soak.tally.total() - soak.tally["broker stopped"] < KILLS:
            soak.strike()
        records = soak.finish()
        print(f"{soak.tally}, {sum(map(len, records)):,} lines", flush=True)
        assert is_each_there_once(soak.lines, records)
