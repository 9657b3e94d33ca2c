"""Runs suites one after the other, goes on after one that failed, and ends with a table:
``python -m tests.suites gate``, ``python -m tests.suites thorough [PART,PART]``.

In the gate a test that ran out of patience is run once more, alone, when the machine is quiet. If
the test passes then, the test is a *flake*: printed, and no failure. Only a wait in vain can be
forgiven, never an assertion. In thorough runs a failed test in which processes die is run once
more, alone. If the test passes then, the test is *unsteady*; more than two unsteady tests fail the
run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests import patience

ROOT = Path(__file__).resolve().parents[1]
GATE = ("lint", "types", "layers", "docs", "guards", "kills", "test")
"""Targets of the Makefile. The tests come last, so that pytest's line closes the output."""
PYTEST = (sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile")
THOROUGH: dict[str, tuple[str, ...]] = {
    "unit": (*PYTEST, "-m", "thorough", "tests/unit"),
    "schedules": (*PYTEST, "-m", "thorough", "tests/property"),
    "search": (*PYTEST, "-m", "", "tests/property"),
    "matrix": (
        *PYTEST,
        "-m",
        "thorough",
        "tests/conformance",
        "tests/integration",
        "tests/starter",
    ),
    "fault": (*PYTEST, "-m", "", "tests/fault"),
    "mutants": (sys.executable, "-m", "tests.mutants.runner"),
    "soak": (sys.executable, "-m", "tests.soak", "--matrix", "--seed", "1"),
}
SEARCHING = {"search": {"TEST_HYPOTHESIS": "search"}}
UNSTEADY = ("fault",)
"""Parts whose failed tests are run once more."""
FORGIVEN_MAX = 3
UNSTEADY_MAX = 2
DONE = ROOT / ".venv" / "thorough"
"""Results of parts that passed: a run that was interrupted goes on there, on the same commit."""
DIRTY = "-dirty"
_COUNTED = re.compile(r"of (\d+) mutations were noticed|^ *trials +(\d+)")
"""Closing lines of the programs that are not pytest."""
_HIDES = "During handling of the above exception, another exception occurred"
"""In a report: the last exception is that of a clean-up, and another one came before."""
_ENDED_BADLY = re.compile(r"(\d+) (?:failed|error)")
_IN_VAIN = re.compile(
    r'(failed on setup with ")?(tests\.patience\.OutOfPatience: |Failed: Timeout \(>)'
)


@dataclass(frozen=True)
class Failure:
    """A failed test, by its id, with pytest's report."""

    test: str
    report: str

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the test only waited in vain: no claim about data was false."""
        return _IN_VAIN.match(self.report) is not None and _HIDES not in self.report


@dataclass
class Result:
    """How a suite ended. ``forgiven`` are the failures that passed alone."""

    name: str
    code: int
    seconds: float
    tests: int = 0
    failures: list[Failure] = field(default_factory=list)
    forgiven: list[Failure] = field(default_factory=list)
    closing: str = ""

    @property
    def is_good(self) -> bool:
        """Nothing failed but what was forgiven, and the suite ran to its end."""
        ended_badly = sum(map(int, _ENDED_BADLY.findall(self.closing)))
        return self.code == 0 or (
            bool(self.forgiven) and not self.failures and ended_badly == len(self.forgiven)
        )


def run(name: str, command: Sequence[str], environment: dict[str, str]) -> Result:
    """Run one suite; its output goes where ours goes."""
    print(f"\n=== {name}: {time.strftime('%H:%M:%S')}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txtopo-suite-") as directory:
        report = Path(directory) / "report.xml"
        options = f"--durations=25 -o junit_family=xunit1 --junitxml={report} {os.environ.get('PYTEST_ADDOPTS', '')}"
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "PYTEST_ADDOPTS": options},
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        closing, counted = "", 0
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip() if line.startswith("=") else closing
            if (count := _COUNTED.search(line)) is not None:
                counted = int(count[1] or count[2])
        code = process.wait()
        tests, failures = read_report(report)
    return Result(name, code, time.monotonic() - began, tests or counted, failures, closing=closing)


def read_report(report: Path) -> tuple[int, list[Failure]]:
    """The number of tests in a report of pytest, and the failures."""
    if not report.exists():
        return 0, []
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except ElementTree.ParseError:  # pytest was killed while it wrote
        return 0, []
    ends = [(case, child) for case in cases for child in case if child.tag in ("failure", "error")]
    return len(cases), [
        Failure(test_id(case), f"{end.get('message', '')}\n{end.text}") for case, end in ends
    ]


def test_id(case: ElementTree.Element) -> str:
    """The id by which pytest selects the test of ``case``."""
    file = case.get("file", "")
    classes = (
        case.get("classname", "")
        .removeprefix(file.removesuffix(".py").replace("/", "."))
        .strip(".")
        .split(".")
    )
    return "::".join([file, *filter(None, classes), case.get("name", "")])


def try_again(result: Result, may_be_forgiven: Callable[[Failure], bool]) -> None:
    """Run each failed test alone, if all of them may be forgiven."""
    if (
        not result.failures
        or len(result.failures) > FORGIVEN_MAX
        or not all(map(may_be_forgiven, result.failures))
    ):
        return
    wait_until_quiet()
    for failure in list(result.failures):
        command = [sys.executable, "-m", "pytest", "-m", "", "-n", "0", failure.test]
        alone = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        print(alone.stdout, flush=True)
        if alone.returncode == 0:
            result.failures.remove(failure)
            result.forgiven.append(
                Failure(failure.test, f"{failure.report}\n--- alone:\n{alone.stdout}")
            )


def wait_until_quiet(seconds: float = 10.0) -> None:
    """Return when the processors were idle for most of some ``seconds``, or patience ends."""
    deadline = time.monotonic() + patience.PATIENCE_S
    while time.monotonic() < deadline:
        before = times()
        time.sleep(seconds)
        idle, whole = (now - then for now, then in zip(times(), before, strict=True))
        if idle > 0.5 * whole:
            return


def times() -> tuple[int, int]:
    """Ticks that the processors were idle, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def gate() -> int:
    """Run the suites of `make ci`, in any shell. Returns the exit status."""
    for variable in ("PYTEST_ADDOPTS", "TEST_HYPOTHESIS"):
        os.environ.pop(variable, None)
    os.environ["TXTOPO_NO_SKIPS"] = "1"
    results = []
    for name in GATE:
        result = run(name, [os.environ.get("MAKE", "make"), name], {})
        try_again(result, lambda failure: failure.is_out_of_patience)
        results.append(result)
    return finish(results, "flaked", all(result.is_good for result in results))


def thorough(only: Sequence[str]) -> int:
    """All parts of `make thorough`, or those named; the exit status."""
    unknown = set(only) - THOROUGH.keys()
    if unknown:
        print(
            f"no such part: {', '.join(sorted(unknown))}\n  The parts are {', '.join(THOROUGH)}.",
            file=sys.stderr,
        )
        return 2
    tree = commit()
    results = []
    for name in only or THOROUGH:
        done = DONE / f"{name}.json"
        if (earlier := restored(done, tree)) is not None:
            print(f"\n=== {name}: passed on this commit before", flush=True)
            results.append(earlier)
            continue
        result = run(name, THOROUGH[name], SEARCHING.get(name, {}))
        if name in UNSTEADY:
            try_again(result, lambda failure: True)
        results.append(result)
        if result.is_good and len(result.forgiven) <= UNSTEADY_MAX and not tree.endswith(DIRTY):
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(json.dumps({"commit": tree, "result": asdict(result)}))
    unsteady = sum(len(result.forgiven) for result in results)
    return finish(
        results, "unsteady", all(result.is_good for result in results) and unsteady <= UNSTEADY_MAX
    )


def commit() -> str:
    """The commit that is checked out, and whether files were changed or added since."""
    looks = [["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain"]]
    head, changed = (
        subprocess.run(look, cwd=ROOT, capture_output=True, text=True, check=False)
        for look in looks
    )
    return head.stdout.strip() + (
        DIRTY if head.returncode or changed.returncode or changed.stdout else ""
    )


def restored(done: Path, tree: str) -> Result | None:
    """The result that an earlier run on the commit ``tree`` wrote to the file ``done``, if there is
    one."""
    if not done.exists() or tree.endswith(DIRTY):
        return None
    content = json.loads(done.read_text())
    if content["commit"] != tree:
        return None
    result = Result(**content["result"])
    result.forgiven = [Failure(**failure) for failure in content["result"]["forgiven"]]
    return result


def finish(results: Sequence[Result], word: str, is_good: bool) -> int:
    """Print what was forgiven, a table, and the last line of pytest, that of a red suite if one is;
    the exit status."""
    for result in results:
        for failure in result.forgiven:
            print(f"\n{word.upper()} {failure.test} in {result.name}: {failure.report}")
    print(f"\n{'suite':<12}{'tests':>8}{'seconds':>9}{'failed':>8}{word:>10}")
    for result in results:
        failed = len(result.failures) or (0 if result.is_good else 1)
        print(
            f"{result.name:<12}{result.tests:>8}{result.seconds:>9.0f}{failed:>8}{len(result.forgiven):>10}"
        )
    of_red = [result.closing for result in results if result.closing and not result.is_good]
    of_all = [result.closing for result in results if result.closing]
    print((of_red or of_all or [""])[-1], flush=True)
    return 0 if is_good else 1


def main(arguments: Sequence[str]) -> int:
    """The gate, or thorough parts; the exit status."""
    match arguments:
        case ["gate"]:
            return gate()
        case ["thorough", *parts]:
            return thorough([part for text in parts for part in text.split(",") if part])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
