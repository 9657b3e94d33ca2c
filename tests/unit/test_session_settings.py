"""Settings of a Spark session, and refused settings, as far as no session is needed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from txtopo import SetupError
from txtopo.spark import session


@pytest.mark.rule(33)
def test_all_mistakes_are_told_at_once_with_the_lines_to_type() -> None:
    settings = {
        "spark.speculation": " TRUE",
        "spark.stage.maxAttempts": "1",
        "spark.task.maxFailures": "4",
    }
    with pytest.raises(SetupError) as refused:
        session.refuse_unsafe(settings, "the line")
    assert str(refused.value).splitlines() == [
        "the line has spark.speculation= TRUE, but a second copy of a task would emit the batch twice; "
        "spark.task.maxFailures=4, but a task that Spark retries would run a bolt twice in one attempt",
        "  Leave it out, or set spark.speculation=false, spark.task.maxFailures=1.",
        "  For spark-submit: --conf spark.speculation=false --conf spark.task.maxFailures=1",
    ]


@pytest.mark.rule(33)
@pytest.mark.parametrize("master", ["local[2,4]", "local[*, 2]"])
def test_a_local_master_that_retries_tasks_is_refused(master: str) -> None:
    with pytest.raises(
        SetupError, match=r"retries tasks, but .*\n  Give --master local\[(2|\*)\]\."
    ):
        session.our_settings(master)


def test_only_a_local_master_has_the_drivers_address_set() -> None:
    assert session.our_settings("local[2]")["spark.driver.host"] == "127.0.0.1"
    for cluster in ("spark://host:7077", "yarn", "k8s://https://host"):
        with pytest.raises(
            SetupError,
            match="is a cluster, whose executors must be given the code first\n  Type `txtopo submit TARGET --master",
        ):
            session.require_local(cluster)


class Cluster:
    """A context whose executors come in turn: their number at each look, the driver among them."""

    master = "spark://host:7077"

    def __init__(self, executors: list[int], cores: int, settings: dict[str, str]) -> None:
        self._looks = itertools.chain(executors, itertools.repeat(executors[-1]))
        self._now, self._cores, self._settings = 1, cores, settings

    # A stand-in for all of Spark's objects.
    def __getattr__(self, name: str) -> Any:
        if name in ("_jsc", "getConf"):
            return self if name == "_jsc" else lambda: self
        if name in ("sc", "getExecutorMemoryStatus"):
            return lambda: self
        raise AttributeError(name)

    def size(self) -> int:
        self._now = next(self._looks)
        return self._now

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._settings.get(key, default)

    @property
    def defaultParallelism(self) -> int:
        # Spark counts two cores where there are fewer.
        return max(2, (self._now - 1) * self._cores)


class Clock:
    """Time that passes only in sleep."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "time", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_the_cores_of_a_cluster_are_counted_when_its_executors_have_come() -> None:
    assert session.cores_of(Cluster([1, 1, 2, 2, 4], 4, {})) == 12
    assert session.cores_of(Cluster([1, 3], 4, {"spark.task.cpus": "2"})) == 4


def test_a_cluster_without_executors_is_waited_for_within_a_bound_and_said(clock: Clock) -> None:
    with pytest.warns(
        UserWarning,
        match=r"no executor of spark://host:7077 has registered within 30 s: .* do not reach the driver at 10\.0\.0\.1",
    ):
        assert session.cores_of(Cluster([1], 4, {"spark.driver.host": "10.0.0.1"})) == 2
    assert 30.0 <= clock.now_s < 31.0
