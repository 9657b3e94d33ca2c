"""Drivers are killed while a directory grows and logs are rotated: each line is written once, and in
order.

A writer goes on beside the run, and while no driver lives. The choices of the writer, and the kills,
come from a seed, which is printed. The races of the processes do not.
"""

from __future__ import annotations

import abc
import collections
import json
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.starter.commands import ROOT, Command, done
from txtopo.connectors.files import read_committed

SEED = int(os.environ.get("TEST_FILES_SEED") or random.SystemRandom().getrandbits(32))
KILLS = 3
POINTS = [
    *("seal.before", "seal.inside", "seal.after", "apply.before", "apply.inside", "apply.after"),
    *("record.before", "record.inside", "record.after"),
]
LEAD = 400
"""Nothing is written while so many lines wait to be committed."""
MORE = 100
"""After the last kill the writer goes on until so many lines more are committed."""
LOGS = ("app", "web")
ROTATIONS = [(), (), (), ("rename",), ("copytruncate",), *3 * [("rename", "copytruncate")]]
"""The rotations in one go: a copy that comes behind a renamed file finds the driver behind, too."""
TOPOLOGIES = ROOT / "tests" / "topologies" / "files_in_motion.py"


class Writer(abc.ABC):
    """Writes numbered lines. ``written`` counts the lines by file or log."""

    def __init__(self, place: Path) -> None:
        self.dice, self.written = random.Random(SEED), collections.Counter[str]()
        self.files, self.out = place / "in", place / "out"
        self.files.mkdir()
        self.is_ending = False
        self._steps: Iterator[None] = iter(())

    def go_on(self) -> None:
        """Take a step. Without one, begin anew if not too many lines wait."""
        for _ in self._steps:
            return
        is_short = self.written.total() < self.count() + self.dice.randrange(LEAD)
        if is_short and not self.is_ending:
            self._steps = self.write()
            next(self._steps)

    @abc.abstractmethod
    def write(self) -> Iterator[None]:
        """Write some lines, in steps, which are counted at the first step. The driver may look at
        the files between two steps."""

    def count(self) -> int:
        """How many lines are committed."""
        return sum(file.rows for _, files in read_committed(self.out) for file in files)

    def committed(self, until: int | None = None) -> Iterator[tuple[str, int]]:
        """The lines that readers of transactions see, in order."""
        read = read_committed(self.out, until=until)
        return ((log, n) for _, files in read for file in files for log, n in read.rows(file))

    def listed(self) -> Iterator[tuple[str, int]]:
        """The lines that a pattern shows, in order."""
        for path in sorted(self.out.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                yield row["log"], row["n"]

    def lines(self, log: str, count: int) -> str:
        """The next lines."""
        begin = self.written[log]
        self.written[log] += count
        return "".join(f'{{"log": "{log}", "n": {n}}}\n' for n in range(begin, begin + count))


class GrowingDirectory(Writer):
    """Renames new files into the directory, and removes some that were read."""

    def write(self) -> Iterator[None]:
        name, new = f"{len(self.written):06}", self.files / ".new"
        new.write_text(self.lines(name, self.dice.randint(0, 60)))
        yield
        new.rename(self.files / f"{name}.jsonl")
        if self.dice.random() < 0.1:
            # All transactions before the newest are recorded.
            newest = max((txid for txid, _ in read_committed(self.out)), default=1)
            counts = collections.Counter(log for log, _ in self.committed(newest - 1))
            for read in (name for name, count in counts.items() if count == self.written[name]):
                (self.files / f"{read}.jsonl").unlink(missing_ok=True)


class RotatedLogs(Writer):
    """Appends to logs, in pieces that are no lines. Rotates the logs in both ways of logrotate."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._may_rotate = False
        for name in LOGS:
            (self.files / f"{name}.log").touch()

    def write(self) -> Iterator[None]:
        # A topology begins with the file that a log has when the first line is read.
        self._may_rotate = self._may_rotate or {log for log, _ in self.committed()} == {*LOGS}
        rotations = self.dice.choice(ROTATIONS) if self._may_rotate else ()
        name = self.dice.choice(LOGS)
        log = self.files / f"{name}.log"
        texts = [self.lines(name, self.dice.randint(1, 40)) for _ in range(1 + len(rotations))]
        for number in range(len(rotations)):
            texts[number] = texts[number].rstrip(self.dice.choice(("", "\n")))
        yield from self._append(log, texts[0], self.dice.random() < 0.1)
        for rotation, text in zip(rotations, texts[1:], strict=True):
            for number in range(len([*self.files.glob(f"{log.name}.*")]), 0, -1):
                old = log.with_name(f"{log.name}.{number}")
                old.rename(old.with_suffix(f".{number + 1}"))
            rotated = log.with_name(f"{log.name}.1")
            if rotation == "copytruncate":
                yield from self._append(rotated, log.read_text(), self.dice.random() < 0.7)
                os.truncate(log, 0)
                yield
                yield from self._append(log, text, False)
            else:
                log.rename(rotated)
                if self.dice.random() < 0.5:
                    yield
                # A copy that follows begins before the driver has come to this text.
                log.write_text(text)

    def _append(self, path: Path, text: str, is_met: bool) -> Iterator[None]:
        """Append to a file in two parts. If ``is_met``, the driver must come to each of them."""
        name, first = path.name.split(".")[0], json.loads(text.partition("\n")[0])["n"]
        cut = self.dice.randrange(len(text))
        for part in (text[:cut], text[cut:]):
            with path.open("a") as file:
                file.write(part)
            yield
            while is_met and dict(self.committed()).get(name, -1) < first - 1:
                yield


def numbers_of(lines: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers of the lines, by file or log. They must be 0, 1, 2 …"""
    numbers = collections.defaultdict[str, list[int]](list)
    for log, n in lines:
        numbers[log].append(n)
        assert n == len(numbers[log]) - 1, f"line {n} of {log} is not in its place"
    return numbers


@pytest.mark.thorough
@pytest.mark.rule(18, 20, 23, 28)
@pytest.mark.parametrize(("name", "kind"), [("grown", GrowingDirectory), ("followed", RotatedLogs)])
def test_killed_drivers_write_each_line_once_while_a_directory_grows_or_logs_are_rotated(
    name: str, kind: Callable[[Path], Writer], tmp_path: Path
) -> None:
    print(f"again: TEST_FILES_SEED={SEED}", flush=True)
    writer, dice, txid = kind(tmp_path), random.Random(SEED), 0
    run: list[str | Path] = ["txtopo", "run", f"{TOPOLOGIES}:{name}", "--master", "local[2]"]
    place = {"FILES_IN_MOTION": str(tmp_path)}

    def write_until(condition: Callable[[], bool], event: str) -> None:
        def holds() -> bool:
            writer.go_on()
            return condition()

        command.wait_until(holds, event)

    for _ in range(KILLS):
        point, txid = dice.choice(POINTS), txid + dice.randint(4, 8)
        fault = f"{point}@{name}-files:{txid}=hold"
        print(fault, flush=True)
        with Command(run, tmp_path, **place, TXTOPO_FAULT=fault) as command:
            write_until(lambda: "fault: " in command.said, fault)
            command.signal(signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
        numbers_of(writer.committed())
    with Command(run, tmp_path, **place) as command:
        count = writer.count() + MORE
        write_until(lambda: writer.count() > count, f"{MORE} lines more")
        writer.is_ending = True
        write_until(lambda: writer.count() >= writer.written.total(), "all lines")
        command.signal(signal.SIGTERM)
        assert command.wait() == 0, command.said
    done([*run, "--until-exhausted"], tmp_path, 0, **place)
    expected = {log: [*range(count)] for log, count in writer.written.items() if count}
    assert numbers_of(writer.committed()) == numbers_of(writer.listed()) == expected
