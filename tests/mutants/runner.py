"""Applies one mutation at a time to a copy of the tree and runs the tests that should notice:
``python -m tests.mutants.runner [--one-per-guard] [NAME …]``.

A mutation is *noticed* if one of its tests fails, or hangs, and passes on a copy without the
mutation. A mutation that no test notices *survives*, and is a hole in the tests. A *broken* mutation
proves nothing: it cannot be applied, or prevents the collection of its tests, or its tests lack a
server or fail without it. Surviving and broken mutations end the program with status 1.

Tests run in forks of a Python that has imported the packages of others (``warm``): imports would
take half of the time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.guards import GUARDS
from tests.mutants.mutation import Mutation, unfold

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "txtopo",
    "tests",
    "starter",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
SIDE_BY_SIDE = 2
WARM = ROOT / "tests" / "mutants" / "warm.py"
PYTEST = ("-q", "--no-header", "-m", "")
IMPATIENT = {"TEST_PATIENCE_S": "20", "TEST_HYPOTHESIS": "unshrunk"}
"""A mutation that a test waits for in vain is noticed, however short the wait. The tests of the
unbroken source wait as long as ever."""
BOUNDED = ("--timeout", "120", "-x")
SECONDS_MAX = 900
_MISSING = "ServerMissingError"
_TIMED_OUT = "from pytest-timeout"


@dataclass(frozen=True)
class Verdict:
    """What became of one mutation."""

    name: str
    word: str
    seconds: float
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """A test noticed."""
        return self.word == "noticed"


def environment_of(tree: Path, **more: str) -> dict[str, str]:
    """The environment of a Python whose code is in ``tree``; it keeps bytecode there."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS")
    }
    return {
        **inherited,
        "TEST_HYPOTHESIS": "gate",
        "PYTHONPATH": str(tree),
        "TXTOPO_TREE": str(tree),
        **more,
    }


class WarmPython:
    """Runs pytest in forks of one process, one at a time; it lives inside a ``with``."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, str(WARM)],
            stdin=pipe,
            stdout=pipe,
            text=True,
            env=environment_of(ROOT),
        )

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(
        self, tree: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str] | None:
        """pytest with ``arguments``, in the copy ``tree``; ``None`` if it does not end in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # pytest's plugins are among the modules that are there already. Directories of tests beside
        # the tree: two that share pytest's own remove each other's, which is an error at times.
        all_arguments = [
            *PYTEST,
            *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
            f"--basetemp={tree.parent / 'tmp'}",
            *arguments,
        ]
        request = {
            "tree": str(tree),
            "environment": environment_of(tree, **environment),
            "arguments": all_arguments,
            "seconds": SECONDS_MAX,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Python that runs the tests has ended: see above")
        answer = json.loads(line)
        return (
            None
            if answer["status"] is None
            else subprocess.CompletedProcess([], answer["status"], answer["output"], "")
        )


def copy_to(original: Path) -> None:
    """Copy the sources to ``original``, unfold and compile them: most mutants change one file and
    read two hundred."""
    ignored = shutil.ignore_patterns("__pycache__", "_build", ".txtopo", "*.pyc")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, original / name, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, original / name)
    unfold(original / "txtopo")
    command = [sys.executable, "-m", "compileall", "-q", "-j", str(SIDE_BY_SIDE), "txtopo", "tests"]
    subprocess.run(command, cwd=original, stdout=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def linked(original: Path) -> Iterator[Path]:
    """A copy of ``original`` in which tests may run: pytest keeps its bytecode there, and nothing
    changes in ``original`` while other copies are made."""
    with tempfile.TemporaryDirectory(prefix="txtopo-mutant-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(original, tree, copy_function=os.link)
        yield tree


def apply(mutation: Mutation, tree: Path) -> str | None:
    """Change one file of ``tree``, which is linked to the original; the reason why not, if the
    source has moved on."""
    file = tree / mutation.file
    text, seconds = file.read_text(), file.stat().st_mtime
    places = text.count(mutation.old)
    if places != 1:
        return f"{mutation.file} has {places} places like {mutation.old!r}; mend tests/mutants/catalogue.py"
    file.unlink()
    file.write_text(text.replace(mutation.old, mutation.new))
    # Bytecode is that of a source of a certain size, written at a certain second.
    os.utime(file, (seconds + 10, seconds + 10))
    return None


def judge(mutation: Mutation, original: Path, python: WarmPython) -> Verdict:
    """Run the tests named by ``mutation`` on a copy of ``original`` that has it."""
    began = time.monotonic()
    with linked(original) as tree:
        reason = apply(mutation, tree)
        if reason is not None:
            return Verdict(mutation.name, "broken", 0.0, reason)
        for _ in range(2):
            done = python.run(tree, [*BOUNDED, *mutation.tests], IMPATIENT)
            verdict = verdict_of(mutation, done, time.monotonic() - began)
            # A fixture may fail without the mutation's doing, as a server that does not start in
            # time.
            if done is None or "\nERROR " not in done.stdout or "\nFAILED " in done.stdout:
                break
    if verdict.is_good:
        with linked(original) as tree:
            reason = fails_unbroken(mutation, verdict, tree, python)
        if reason is not None:
            return replace(verdict, word="broken", detail=reason)
    return verdict


def fails_unbroken(
    mutation: Mutation, verdict: Verdict, tree: Path, python: WarmPython
) -> str | None:
    """The reason why a test that notices ``mutation`` proves nothing: it fails in ``tree``, which
    does not have it."""
    unbroken = python.run(tree, [verdict.detail], {}) if "::" in verdict.detail else None
    # A test that hangs has no id here, nor has one whose id pytest does not print in full.
    if unbroken is None or unbroken.returncode not in (0, 1):
        unbroken = python.run(tree, mutation.tests, {})
    if unbroken is not None and unbroken.returncode == 0:
        return None
    end = "does not end" if unbroken is None else "\n".join(unbroken.stdout.splitlines()[-15:])
    return f"{verdict.detail}: fails without the mutation, too: {end}"


def verdict_of(
    mutation: Mutation, done: subprocess.CompletedProcess[str] | None, seconds: float
) -> Verdict:
    """The verdict about ``mutation`` of pytest, ended as ``done``, or killed; a missing server may
    fail tests without the mutation's doing."""
    if done is None:
        return Verdict(mutation.name, "noticed", seconds, f"no end within {SECONDS_MAX} s")
    lines = done.stdout.splitlines()
    if _MISSING in done.stdout:
        return Verdict(
            mutation.name,
            "broken",
            seconds,
            next(line for line in lines if _MISSING in line).strip(),
        )
    failed = [
        line.removeprefix("FAILED ").split(" - ")[0] for line in lines if line.startswith("FAILED")
    ]
    if done.returncode == 1 and (failed or _TIMED_OUT in done.stdout):
        return Verdict(
            mutation.name, "noticed", seconds, failed[0] if failed else "a test timed out"
        )
    if done.returncode == 0:
        return Verdict(
            mutation.name, "SURVIVED", seconds, f"all of {' '.join(mutation.tests)} pass"
        )
    return Verdict(mutation.name, "broken", seconds, "\n".join(lines[-15:]) + done.stderr[-500:])


def verdicts(chosen: Sequence[Mutation]) -> Iterator[Verdict]:
    """Judge the mutations ``chosen``, in their order, :data:`SIDE_BY_SIDE` at a time."""
    with contextlib.ExitStack() as stack:
        original = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txtopo-mutants-")))
            / "tree"
        )
        original.mkdir()
        copy_to(original)
        pythons = queue.SimpleQueue[WarmPython]()
        for _ in range(SIDE_BY_SIDE):
            pythons.put(stack.enter_context(WarmPython()))

        def judged(mutation: Mutation) -> Verdict:
            python = pythons.get()
            try:
                return judge(mutation, original, python)
            finally:
                pythons.put(python)

        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE))
        yield from pool.map(judged, chosen)


def one_per_guard() -> list[Mutation]:
    """For each guard the first mutation whose tests need nothing; the other guards are printed."""
    chosen = []
    for guard in GUARDS:
        quick = [mutation for mutation in guard.mutations if mutation.is_quick]
        chosen.extend(quick[:1])
        if not quick:
            print(
                f"left out  the guard {guard.name!r}: the tests of its mutations need a server",
                flush=True,
            )
    return chosen


def main(arguments: list[str]) -> int:
    """Judge the mutations that ``arguments`` name, or all of them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.runner")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mutation (default: all)")
    parser.add_argument(
        "--one-per-guard",
        action="store_true",
        help="one mutation of each guard whose tests need no server",
    )
    options = parser.parse_args(arguments)
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := set(options.names) - by_name.keys():
        print(f"no such mutation: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = (
        one_per_guard()
        if options.one_per_guard
        else [by_name[name] for name in options.names or by_name]
    )
    bad = []
    for verdict in verdicts(chosen):
        print(
            f"{verdict.word:<9} {verdict.seconds:5.1f} s  {verdict.name}: {verdict.detail}",
            flush=True,
        )
        if not verdict.is_good:
            bad.append(verdict)
    if bad:
        print(
            "",
            *(f"{verdict.word:<9} {verdict.name}: {verdict.detail}" for verdict in bad),
            "",
            sep="\n",
        )
    print(f"{len(chosen) - len(bad)} of {len(chosen)} mutations were noticed")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
