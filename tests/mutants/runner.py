"""Applies one mutation at a time to a copy of the tree and runs the tests that should notice:
``python -m tests.mutants.runner [NAME …]``.

A mutation that no test notices *survives*, and is a hole in the tests. A mutation that cannot be
applied, or prevents the collection of its tests, proves nothing and is reported as broken; so is a
mutation whose tests lack a server. Surviving and broken mutations end the program with status 1.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("txtopo", "tests", "starter", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
SIDE_BY_SIDE = 2
PYTEST = ("pytest", "-q", "--no-header", "-p", "no:hypothesispytest", "-m", "not long")
"""Without the plugin of Hypothesis, tests that use no Hypothesis start in half the time; the others
run as well."""
SECONDS_MAX = 300
_MISSING = "ServerMissingError"


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


def environment_of(tree: Path) -> dict[str, str]:
    """The environment of a Python whose code is in ``tree``; it keeps bytecode there."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(tree), "TXTOPO_TREE": str(tree)}


def prepare(original: Path, tests: Iterable[str]) -> None:
    """Copy the sources to ``original``, and compile them: most mutants change one file and read two
    hundred."""
    ignored = shutil.ignore_patterns("__pycache__", "_build", ".txtopo", "*.pyc")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, original / name, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, original / name)
    environment = environment_of(original)
    for command in (["compileall", "-q", "-j", str(SIDE_BY_SIDE), "txtopo", "tests"], [*PYTEST, "--collect-only", *sorted(tests)]):
        subprocess.run([sys.executable, "-m", *command], cwd=original, env=environment, stdout=subprocess.DEVNULL, check=True)


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


def judge(mutation: Mutation, original: Path) -> Verdict:
    """Run the tests named by ``mutation`` on a copy of ``original`` that has it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txtopo-mutant-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(original, tree, copy_function=os.link)
        reason = apply(mutation, tree)
        if reason is not None:
            return Verdict(mutation.name, "broken", 0.0, reason)
        command = [sys.executable, "-m", *PYTEST, "-x", "--timeout", "120", *mutation.tests]
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment_of(tree), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutation.name, "noticed", time.monotonic() - began, f"no end within {SECONDS_MAX} s")
    return verdict_of(mutation, done, time.monotonic() - began)


def verdict_of(mutation: Mutation, done: subprocess.CompletedProcess[str], seconds: float) -> Verdict:
    """The verdict about ``mutation`` of pytest, ended as ``done``; a missing server may fail tests
    without the mutation's doing."""
    if _MISSING in done.stdout:
        missing = next(line for line in done.stdout.splitlines() if _MISSING in line)
        return Verdict(mutation.name, "broken", seconds, missing.strip())
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode == 1 and failed:
        return Verdict(mutation.name, "noticed", seconds, failed[0].removeprefix("FAILED ").split(" - ")[0])
    if done.returncode == 0:
        return Verdict(mutation.name, "SURVIVED", seconds, f"all of {' '.join(mutation.tests)} pass")
    return Verdict(mutation.name, "broken", seconds, "\n".join(done.stdout.splitlines()[-15:]) + done.stderr[-500:])


def main(names: list[str]) -> int:
    """Judge the mutations ``names``, or all of them; the exit status."""
    unknown = set(names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        print(f"no such mutation: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="txtopo-mutants-") as directory, concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        original = Path(directory) / "tree"
        original.mkdir()
        prepare(original, {test.partition("::")[0] for mutation in chosen for test in mutation.tests if test.endswith(".py") or ".py::" in test})
        for verdict in pool.map(lambda mutation: judge(mutation, original), chosen):
            verdicts.append(verdict)
            print(f"{verdict.word:<9} {verdict.seconds:5.1f} s  {verdict.name}: {verdict.detail}", flush=True)
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    print(f"{len(verdicts) - len(bad)} of {len(verdicts)} mutations were noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
