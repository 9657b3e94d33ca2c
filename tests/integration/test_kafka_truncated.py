"""The broker loses the end of a log: in memory, and on a real broker, which is killed, loses a part
of the partition, and is started. All cases share one accident: it takes seconds."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.servers import memory_kafka
from tests.servers.kafka import MEMORY_AND_BROKER, KafkaServer, running_server
from tests.topic_drive import Drive, Plan
from txtopo.connectors.kafka import KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout
from txtopo.connectors.kafka.source import LogChangedError
from txtopo.errors import FailedException

pytestmark = pytest.mark.in_gate("*memory*")
KINDS = pytest.mark.parametrize(
    "kind",
    [KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout],
    ids=["transactional", "opaque"],
)
REFRESH_S = 30.0
BEFORE = 20
"""Offsets of each topic before the accident."""
READ = 10
"""Offsets read before the accident."""
CUT = 14
"""Offsets that are left where not all are lost."""


def numbered(begin: int, end: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(begin, end)]


class Accident:
    """Topics of which the broker has lost records; spouts that had begun to read the partitions."""

    def __init__(self, kafka: Any) -> None:
        self.kafka = kafka
        self.drives: list[Drive] = []
        self._after: list[tuple[str, int, int, int, int]] = []

    def topic(self, left: int, regrown: int = 0, aborted: int = 0) -> str:
        """A topic with ``left`` offsets after the accident, and then with ``aborted`` records that
        no reader sees and ``regrown`` new ones."""
        topic: str = self.kafka.new_topic()
        self.kafka.produce(topic, numbered(0, left))
        is_real = isinstance(self.kafka, KafkaServer)
        size = self._log(topic).stat().st_size if left and is_real else 0
        self.kafka.produce(topic, numbered(left, BEFORE))
        self._after.append((topic, left, size, regrown, aborted))
        return topic

    def drive(
        self, kind: Any, topic: str, read: int = READ, is_warm: bool = False, **arguments: Any
    ) -> Drive:
        """A spout that has read the first records; ``read`` is a multiple of 5."""
        drive = Drive(
            kind(
                self.kafka.servers,
                topic,
                **{"format": "text", "refresh_s": REFRESH_S, "records_per_batch": 5, **arguments},
            )
        )
        self.drives.append(drive)
        rows: list[Any] = []
        while len(rows) < read:
            assert drive.is_ready
            rows += drive.next()
        assert rows == numbered(0, read)
        if not is_warm:
            drive.fresh_readers()
        return drive

    def happen(self) -> None:
        """Take the ends of the topics away, and write new records."""
        if isinstance(self.kafka, KafkaServer):
            self._cut_a_dead_brokers_logs(self.kafka)
        else:
            for topic, left, *_ in self._after:
                self.kafka.brokers.log((topic, 0)).truncate(left)
        for topic, _, _, regrown, aborted in self._after:
            if aborted:
                producer = self.kafka.producer(transactional_id=f"aborted-{topic}")
                producer.begin_transaction()
                for value in numbered(0, aborted, "aborted"):
                    producer.produce(topic, value, partition=0)
                producer.flush(PATIENCE_S)
                producer.abort_transaction(PATIENCE_S)
            self.kafka.produce(topic, numbered(0, regrown, "new"))

    def _cut_a_dead_brokers_logs(self, kafka: KafkaServer) -> None:
        kafka.kill()
        for topic, _, size, _, _ in self._after:
            if size:
                with self._log(topic).open("r+b") as log:
                    log.truncate(size)
            else:
                shutil.rmtree(kafka.data / f"{topic}-0")
        kafka.start()
        for topic, *_ in self._after:
            kafka.wait_until(functools.partial(kafka._has_leaders, topic, 1))

    def _log(self, topic: str) -> Any:
        return self.kafka.data / f"{topic}-0" / "00000000000000000000.log"


SHAPES = {"empty": 0, "shorter": READ - 3, "as long": READ, "longer": READ + 7}


@pytest.fixture(scope="module", params=["memory", "broker"])
def accident(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """By case a drive, or a drive and what it had planned."""
    patch = pytest.MonkeyPatch()
    kafka = memory_kafka.patched_in(patch) if request.param == "memory" else running_server()
    accident, cases = Accident(kafka), dict[str, Any]()
    for kind in (KafkaTransactionalSpout, OpaqueKafkaTransactionalSpout):
        for shape, regrown in SHAPES.items():
            topic = accident.topic(0, regrown)
            cases[f"idle, {shape}, {kind.__name__}"] = accident.drive(kind, topic)
            if kind is OpaqueKafkaTransactionalSpout:
                cases[f"skip, {shape}"] = accident.drive(kind, topic, lost="skip")
        topic = accident.topic(0, BEFORE + 10)
        for is_warm in (True, False):
            cases[f"planned, {kind.__name__}, {is_warm}"] = _planned(
                accident.drive(kind, topic, is_warm=is_warm)
            )
        # The end of the planned range is lost, and in its place are records that no reader sees.
        for case, regrown in (("hidden", 0), ("hidden before a record", 1)):
            topic = accident.topic(CUT - 2, regrown, aborted=11)
            cases[f"{case}, {kind.__name__}"] = _planned(accident.drive(kind, topic))
        cases[f"ends in the range, {kind.__name__}"] = _planned(
            accident.drive(kind, accident.topic(CUT - 2))
        )
        cases[f"intact, {kind.__name__}"] = accident.drive(kind, accident.topic(CUT, 5))
        cases[f"whole, {kind.__name__}"] = accident.drive(kind, accident.topic(BEFORE, 5))
    cases["cut, skip"] = accident.drive(
        OpaqueKafkaTransactionalSpout, accident.topic(CUT, BEFORE), BEFORE, lost="skip"
    )
    cases["cut"] = accident.drive(KafkaTransactionalSpout, accident.topic(CUT, BEFORE), BEFORE)
    accident.happen()
    yield cases
    for drive in accident.drives:
        drive.close()
    patch.undo()


def _planned(drive: Drive) -> tuple[Drive, Plan]:
    assert drive.is_ready
    plan = drive.plan()
    assert (plan[0]["start"], plan[0]["end"]) == (READ, READ + 5)
    return drive, plan


def go_on(drive: Drive) -> list[Any]:
    """Transactions until nothing is left; each is planned again or, if its plan is fixed, read
    again until it succeeds."""
    rows: list[Any] = []
    while drive.tried(lambda: drive.is_ready):
        if drive.spout.source.is_opaque:
            rows += drive.tried(drive.next)
        else:
            plan = drive.tried(drive.plan)
            rows += drive.tried(functools.partial(drive.read, plan))
            drive.commit(plan)
    return rows


@KINDS
@pytest.mark.parametrize("shape", SHAPES)
def test_a_log_that_was_lost_stops_the_spout_however_far_it_has_regrown(
    accident: dict[str, Any], kind: Any, shape: str
) -> None:
    drive = accident[f"idle, {shape}, {kind.__name__}"]
    place = r"partition 0, (read up to offset 10|offsets 10 to 15)"
    with pytest.raises(
        LogChangedError, match=rf"{place}: the log was truncated(.|\n)*txtopo state reset words"
    ):
        go_on(drive)
    drive.restart()
    with pytest.raises(
        LogChangedError,
        match=r"partition 0, read up to offset 10: the log was truncated(.|\n)*txtopo state reset",
    ):
        go_on(drive)
    assert drive.positions[0]["end"] == READ


@pytest.mark.parametrize("shape", SHAPES)
def test_skip_reads_every_new_record_of_a_log_that_was_lost(
    accident: dict[str, Any], shape: str
) -> None:
    drive = accident[f"skip, {shape}"]
    assert go_on(drive) == numbered(0, SHAPES[shape], "new")
    (lost,) = drive.planner.lost(drive.positions).values()
    assert lost is None


def test_skip_reads_on_where_the_log_was_cut(accident: dict[str, Any]) -> None:
    assert go_on(accident["cut, skip"]) == numbered(0, BEFORE, "new")


def test_a_log_that_was_cut_before_the_position_stops_the_spout(accident: dict[str, Any]) -> None:
    with pytest.raises(
        LogChangedError,
        match=f"(read up to offset {BEFORE}|offsets {BEFORE} to {BEFORE + 5}): the log was truncated",
    ):
        go_on(accident["cut"])


@KINDS
@pytest.mark.parametrize("is_warm", [True, False], ids=["kept consumer", "fresh consumer"])
def test_a_batch_planned_before_the_loss_reads_no_other_records(
    accident: dict[str, Any], kind: Any, is_warm: bool
) -> None:
    drive, plan = accident[f"planned, {kind.__name__}, {is_warm}"]
    if is_warm:
        # The records were fetched ahead, before the loss.
        assert drive.read(plan) == numbered(READ, READ + 5)
    else:
        with pytest.raises((FailedException, LogChangedError), match="the log was truncated"):
            drive.read(plan)
    if kind is OpaqueKafkaTransactionalSpout:
        with pytest.raises(LogChangedError, match="the log was truncated"):
            drive.tried(drive.plan)


@KINDS
@pytest.mark.parametrize("case", ["hidden", "hidden before a record", "ends in the range"])
def test_the_lost_end_of_a_range_is_no_gap(accident: dict[str, Any], kind: Any, case: str) -> None:
    drive, plan = accident[f"{case}, {kind.__name__}"]
    if kind is KafkaTransactionalSpout:
        with pytest.raises(LogChangedError, match="the log was truncated"):
            drive.tried(lambda: drive.read(plan))
    else:
        with pytest.raises(FailedException):
            drive.read(plan)
        # The log is intact up to the position: the next plan ends where the log does.
        behind = ["new0"] if case == "hidden before a record" else []
        assert go_on(drive) == numbered(READ, CUT - 2) + behind


@KINDS
def test_a_loss_behind_the_position_is_none(accident: dict[str, Any], kind: Any) -> None:
    drive = accident[f"intact, {kind.__name__}"]
    drive.wait(REFRESH_S)
    assert go_on(drive) == [*numbered(READ, CUT), *numbered(0, 5, "new")]


@KINDS
def test_a_broker_that_was_killed_and_lost_nothing_is_no_change(
    accident: dict[str, Any], kind: Any
) -> None:
    assert go_on(accident[f"whole, {kind.__name__}"]) == [
        *numbered(READ, BEFORE),
        *numbered(0, 5, "new"),
    ]


@MEMORY_AND_BROKER
@KINDS
def test_an_end_that_lags_behind_a_change_of_leaders_is_no_loss(
    kafka: KafkaServer, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic()
    kafka.produce(topic, numbered(0, 5))
    drive = Drive(kind(kafka.servers, topic, format="text", refresh_s=REFRESH_S))
    assert drive.rest() == numbered(0, 5)
    place, asked = (topic, 0), drive.planner._log.ends

    def lagging(partitions: Any) -> Any:
        answers: Any = asked(partitions)
        return {**answers, place: type(answers[place])(2, answers[place].epoch + 1)}

    monkeypatch.setattr(drive.planner._log, "ends", lagging)
    assert not drive.is_ready
    drive.wait(REFRESH_S)
    assert not drive.is_ready
    monkeypatch.undo()
    kafka.produce(topic, ["more"])
    assert drive.rest() == ["more"]
    drive.close()
