"""The driver processes of a trial: started, watched, and started again when one has died.

Apart from ``trial`` because a topology whose drivers die needs a supervisor that starts a new
driver. The supervisor knows no workload and no nemesis. Nemeses tell the supervisor which
driver dies on purpose.

Invariants:
    - A driver that ended without having been killed has ended with an exit code it may end with;
      any other is a violation.
    - Every process that was ever seen below a driver is remembered until it is known to have ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.soak import driver, processes
from tests.soak.world import World
from txtopo.config import sources

FINISHED, FENCED, ZOOKEEPER_AWAY, MISMATCH = 0, 4, 5, 6
STARTS_IN_VAIN_MAX = 12
"""So many drivers in a row that committed nothing, and were not killed either: nobody gets anywhere
any more."""
START_AGAIN_AFTER_S = 0.3
COUNT_EVERY_S = 0.5


class Driver:
    """One driver process."""

    def __init__(self, world: World, number: int, role: str) -> None:
        self.number, self.role, self.began = number, role, time.monotonic()
        self.was_killed = False
        self.is_stopped = False
        self.statuses: dict[str, dict[str, Any]] = {}
        self.news: dict[str, Any] = {}
        self._journal = world.path / f"driver-{number}.jsonl"
        self._read_upto = 0
        # Settings of the user's environment are no settings of a trial.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(sources.ENVIRONMENT_PREFIX)
        }
        environment |= {
            "PYTHONPATH": str(driver.ROOT),
            sources.FILE_VARIABLE: "",
            "PYTHONWARNINGS": "ignore",
        }
        with (world.path / f"driver-{number}.err").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.driver", world.directory, str(number), role],
                cwd=driver.ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; ``None`` while it lives."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether it holds every topology."""
        return bool(self.statuses) and all(
            status["state"] == "running" for status in self.statuses.values()
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it stands by."""
        return any(status["state"] == "standby" for status in self.statuses.values())

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self.was_killed = self.exit_code is None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; harmless if it is not stopped, or has ended."""
        self.is_stopped = False
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGCONT)

    def listen(self) -> None:
        """Read the messages since the last reading."""
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            file.seek(self._read_upto)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_upto += len(whole)
        for line in whole.splitlines():
            said = json.loads(line)
            if said["kind"] == "status":
                self.statuses[said["workload"]] = said
            else:
                self.news[said["kind"]] = said


class Drivers:
    """All drivers of a trial, those that have ended included. ``note`` is called with a sentence
    for each thing that happens."""

    def __init__(
        self, world: World, note: Callable[[str], None], refused: Callable[[str], str | None]
    ) -> None:
        """``refused`` gets the reason why a driver ended with exit code 6; it returns a violation,
        or None."""
        self._world, self._note, self._refused = world, note, refused
        self.are_held = False
        """Whether no driver is started, since something is being done that none may see."""
        self.all: list[Driver] = []
        self.living: list[Driver] = []
        self.violations: list[str] = []
        self.exits: Counter[str] = Counter()
        self.seen: set[processes.Process] = set()
        self.finished = False
        self._in_vain = 0
        self._ended_at = 0.0
        self._counted_at = 0.0

    def start(self, role: str = "first") -> Driver:
        """Start one more."""
        begun = Driver(self._world, len(self.all) + 1, role)
        self.all.append(begun)
        self.living.append(begun)
        self._note(f"driver {begun.number} ({role}, pid {begun.pid}) starts")
        return begun

    def look(self) -> None:
        """Collect the exit codes of ended drivers."""
        for each in self.living:
            each.listen()
        if time.monotonic() - self._counted_at > COUNT_EVERY_S:
            self.count()
        for each in [each for each in self.living if each.exit_code is not None]:
            each.listen()
            self.living.remove(each)
            self._ended_at = time.monotonic()
            self._judge(each)

    def count(self) -> list[processes.Process]:
        """Every living process below a driver, as of now."""
        self._counted_at = time.monotonic()
        living = [process for each in self.living for process in processes.below(each.pid)]
        self.seen.update(living)
        return living

    def kill(self, victim: Driver) -> None:
        """SIGKILL to a driver, after a look at the processes it leaves behind."""
        self.count()
        victim.kill()
        self.look()

    def _judge(self, ended: Driver) -> None:
        code = ended.exit_code
        progressed = any(status["committed"] for status in ended.statuses.values())
        self._in_vain = 0 if progressed or ended.was_killed else self._in_vain + 1
        said = ended.news.get("failed", {}).get("error", "").partition("\n")[0]
        if not ended.was_killed:
            self._note(
                f"driver {ended.number} ends with exit code {code}{': ' if said else ''}{said}"
            )
            self.exits[f"exit {code}"] += 1
        if code == FINISHED and self._world.finish.exists():
            self.finished = True
        elif not ended.was_killed and code == MISMATCH:
            wrong = self._refused(said)
            self.violations.extend([] if wrong is None else [wrong])
        elif not ended.was_killed and code not in (FENCED, ZOOKEEPER_AWAY):
            self.violations.append(
                f"driver {ended.number} ended by itself, with exit code {code}: {said or 'see its .err file'}"
            )
        if self._in_vain >= STARTS_IN_VAIN_MAX:
            self.violations.append(
                f"{self._in_vain} drivers in a row ended without having committed anything; the last one: {said}"
            )

    def keep_one(self) -> None:
        """Start a driver if there is none, a moment after the last one ended."""
        if (
            not self.living
            and not self.finished
            and not self.are_held
            and time.monotonic() - self._ended_at > START_AGAIN_AFTER_S
        ):
            self.start()

    def current(self, workload: str) -> int:
        """The next txid to commit, as far as any driver has said."""
        return max(
            (each.statuses[workload]["current"] for each in self.all if workload in each.statuses),
            default=1,
        )

    def total(self, counter: str) -> int:
        """A counter, over all drivers; counts that a killed driver had not yet reported are
        missing.
        """
        return sum(status[counter] for each in self.all for status in each.statuses.values())

    def end(self) -> None:
        """Kill every driver that lives."""
        for each in list(self.living):
            self.kill(each)
