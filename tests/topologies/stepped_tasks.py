"""Tasks of a Kafka sink that go on from one point of their code to the next when they are told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.patience import PATIENCE_S, OutOfPatience
from txtopo.connectors.kafka.auxiliary import AuxiliaryTopic
from txtopo.connectors.kafka.producing import TaskProducer


class Task(threading.Thread):
    """One task, which goes on from a point of its code to the next when it is told to."""

    outcome: object
    """What the work returned or raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work, self._go, self._stands = work, threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = False
        self.start()
        self._wait_until_it_stands()

    def run(self) -> None:
        try:
            self.wait()
            self.outcome = self._work()
        except Exception as error:
            self.outcome = error
        finally:
            self._is_over = True
            self._stands.release()

    def wait(self) -> None:
        """Stand here until the schedule comes to this task again."""
        self._stands.release()
        assert self._go.acquire(timeout=PATIENCE_S)

    def step(self) -> None:
        """Let it go on to the next point, or to its end."""
        if not self._is_over:
            self._go.release()
            self._wait_until_it_stands()

    def finish(self) -> None:
        """Let the task go on to its end."""
        while not self._is_over:
            self.step()
        self.join()

    def _wait_until_it_stands(self) -> None:
        if not self._stands.acquire(timeout=PATIENCE_S):
            raise OutOfPatience("the task hangs")


def set_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of a task: begin as the only producer · read the record · produce · commit."""

    def point(kind: type, method: str, *, is_before: bool) -> None:
        original = getattr(kind, method)

        def stopping(self: Any, *arguments: Any, **more: Any) -> Any:
            task = threading.current_thread()
            if is_before and isinstance(task, Task):
                if method == "_commit":
                    self._producer.flush(PATIENCE_S)
                task.wait()
            answer = original(self, *arguments, **more)
            if not is_before and isinstance(task, Task):
                task.wait()
            return answer

        monkeypatch.setattr(kind, method, stopping)

    point(TaskProducer, "init", is_before=False)
    point(AuxiliaryTopic, "last_records", is_before=False)
    point(TaskProducer, "_commit", is_before=True)
