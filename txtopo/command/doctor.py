"""``txtopo doctor``: checks whether a run can start on this machine, and names the cure for each
missing thing.

The module imports neither pyspark nor kazoo, so that the doctor also works if a package is missing
(``command.entry``).

Runs on: where the command is typed. Starts ``java -version`` and, if nothing is missing, for a
moment a run's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from txtopo import errors
from txtopo.command import output
from txtopo.state import directory, java, privacy

DESCRIPTION = (
    "Check whether a run can start on this machine. Each missing thing is shown with its cure."
)
EXIT_CODES = f"""\
exit codes:
  0  a run can start here
  {errors.SetupError.exit_code}  something is missing
"""

Status = Literal["ok", "missing", "optional", "note"]

DISK_FREE_MIN_BYTES = 256 << 20
"""The free disk that the embedded ZooKeeper needs: three snapshots, and an hour of logs."""
TEMPORARY_FREE_MIN_BYTES = 64 << 20
MEMORY_ADVISED_BYTES = 3 << 30
"""Memory for Spark's JVM (2 GiB), the JVM of ZooKeeper and a few Python processes."""

TRIAL_S = 120.0
_TRIAL = """
import sys, txtopo
from txtopo.config import sources
from txtopo.state import credentials, opening
try:
    conf = sources.resolve().config
    if conf.zookeeper:
        place = opening.Place(conf.data_dir, conf.zookeeper, conf.zookeeper_root, credentials.of(conf))
        opening.look(lambda state: None, place)
    with txtopo.LocalCluster(master="local[1]", data_dir=sys.argv[1], progress=False) as cluster:
        cluster.context.parallelize([0], 1).foreach(lambda n: __import__("txtopo.dataplane.slot"))
except Exception as error:
    print("\\0", error if isinstance(error, txtopo.TxtopoError) else f"a job of Spark failed\\n{error}", sep="")
    sys.exit(1)
"""

EXTRAS_OF_DEVELOPERS = ("bench", "dev", "docs")

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;\s*extra\s*==\s*['\"]([^'\"]+)['\"])?"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line: ``fact`` says the state of ``name``, and ``cure`` tells how to mend it. ``missing``
    keeps a run from starting. ``optional`` is an extra that is not installed. ``note`` means that a
    run may be slow or short of memory."""

    name: str
    status: Status
    fact: str
    cure: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``txtopo doctor``, except ``--json``."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"the data directory to check (default: that of the settings, or {directory.DEFAULT})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the checks and, if nothing is missing, a trial's result. The exit code says whether a
    run can start."""
    data_dir = arguments.data_dir or _data_dir_of_settings()
    results = list(checks(os.environ, data_dir))
    if not any(check.status == "missing" for check in results):
        results.append(trial(data_dir))
    return show(tuple(results), arguments.json)


def trial(data_dir: Path) -> Check:
    """Start a run's processes, with its settings: Spark, a ZooKeeper, and a worker that imports
    txtopo. The ZooKeeper's files are in a directory of their own, on the disk of ``data_dir``."""
    try:
        # A process that was killed may still write.
        with tempfile.TemporaryDirectory(
            prefix="txtopo-doctor-", dir=_nearest(data_dir), ignore_cleanup_errors=True
        ) as place:
            done = subprocess.run(
                [sys.executable, "-c", _TRIAL, place],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TRIAL_S,
            )
    except subprocess.TimeoutExpired:
        return Check(
            "Spark",
            "missing",
            f"no job has run within {TRIAL_S:g} s",
            "Is the machine overloaded, or was a process suspended?",
        )
    if done.returncode == 0:
        return Check("Spark", "ok", "a JVM, a ZooKeeper and a Python worker have run")
    lines = [
        line
        for line in done.stdout.partition("\0")[2].splitlines()
        if not line.lstrip().startswith(("at ", "... "))
    ][:12]
    # If the program printed no error, its process has died, and the last line is the reason.
    lines = lines or [
        f"its trial ended with exit code {done.returncode}",
        *done.stderr.splitlines()[-12:],
    ]
    if home := os.environ.get("SPARK_HOME"):
        lines.append(
            f"SPARK_HOME is {home}. `unset SPARK_HOME` lets the Spark inside pyspark run instead."
        )
    return _of_error("Spark", errors.SetupError("\n".join(lines)))


def show(results: tuple[Check, ...], as_json: bool) -> int:
    """Print ``results``, as text or JSON. The exit code says whether a run can start."""
    missing = [check.name for check in results if check.status == "missing"]
    if as_json:
        output.print_json({"can_run": not missing, "checks": [asdict(check) for check in results]})
    else:
        width = max(len(check.name) for check in results)
        for check in results:
            print(f"{check.status:8}  {check.name:{width}}  {check.fact}")
            if check.cure is not None:
                print(
                    "\n".join(
                        f"{'':10}{'':{width}}    {line.strip()}" for line in check.cure.splitlines()
                    )
                )
        print(
            f"\na run cannot start here: {', '.join(missing)} missing"
            if missing
            else "\na run can start here"
        )
    return errors.SetupError.exit_code if missing else 0


def checks(environment: Mapping[str, str], data_dir: Path) -> Iterator[Check]:
    """All checks, in the order in which a run needs the things."""
    yield Check("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield _java(environment)
    for package, bounds, extra in _requirements():
        if extra is None:
            yield _package(package, bounds)
    yield _data_dir(data_dir)
    yield _temporary()
    yield _memory()
    yield from _extras()


# -- programs ------------------------------------------------------------------------------------


def _java(environment: Mapping[str, str]) -> Check:
    try:
        usable = java.require_java()
    except errors.SetupError as error:
        return _of_error("Java", error)
    source = "JAVA_HOME" if environment.get("JAVA_HOME") else "the PATH"
    return Check("Java", "ok", f"{usable.version}, {usable.executable}, from {source}")


def _of_error(name: str, error: Exception) -> Check:
    fact, _, cure = str(error).partition("\n")
    return Check(name, "missing", fact, cure.strip() or None)


# -- packages ------------------------------------------------------------------------------------


def _package(package: str, bounds: str) -> Check:
    version = _installed_version(package)
    cure = f"Type: pip install '{package}{bounds}'"
    if version is None:
        return Check(package, "missing", "is not installed", cure)
    if not _is_within(version, bounds):
        return Check(package, "missing", f"{version} is installed; {bounds} is needed", cure)
    return Check(package, "ok", version)


def _extras() -> Iterator[Check]:
    packages: dict[str, list[str]] = {}
    for package, bounds, extra in _requirements():
        if extra is not None and extra not in EXTRAS_OF_DEVELOPERS:
            version = _installed_version(package)
            lacking = packages.setdefault(extra, [])
            if version is None or not _is_within(version, bounds):
                lacking.append(package if version is None else f"{package}{bounds} (not {version})")
    for extra, lacking in packages.items():
        if lacking:
            yield Check(
                f"[{extra}]",
                "optional",
                f"not installed: {', '.join(lacking)}",
                f"Type: pip install 'txtopo[{extra}]'",
            )
        else:
            yield Check(f"[{extra}]", "ok", "installed")


@functools.cache
def _requirements() -> tuple[tuple[str, str, str | None], ...]:
    """Each package that txtopo requires, with bounds and extra."""
    try:
        lines = importlib.metadata.requires("txtopo") or []
    except importlib.metadata.PackageNotFoundError:
        # txtopo runs from its source or from a zip, and the packages' versions are unknown.
        lines = ["cloudpickle", "kazoo", "pydantic", "pyspark"]
    matches = (_REQUIREMENT.fullmatch(line) for line in lines)
    return tuple((match[1], match[2], match[3]) for match in matches if match is not None)


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_within(version: str, bounds: str) -> bool:
    """Whether ``version`` is within ``bounds``, such as ``>=4.1,<5``."""
    compare: dict[str, Callable[[list[int], list[int]], bool]] = {
        ">=": list.__ge__,
        "<": list.__lt__,
    }
    for bound in filter(None, bounds.split(",")):
        match = re.fullmatch(r"\s*(>=|<)\s*([\d.]+)\s*", bound)
        if match is not None and not compare[match[1]](_numbers(version), _numbers(match[2])):
            return False
    return True


def _numbers(version: str) -> list[int]:
    """The leading numbers of ``version``, without zeros at the end."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


# -- the machine ---------------------------------------------------------------------------------


def _data_dir(path: Path) -> Check:
    name, cure = "data directory", "Choose another directory: --data-dir DIR"
    place = path.absolute()
    try:
        nearest = _nearest(path)
        if not nearest.is_dir():
            return Check(name, "missing", f"{nearest} is a file", cure)
        if directory.is_owned(place):
            return Check(
                name,
                "missing",
                f"{place} is in use by another run",
                f"Stop that run, or wait for its end. {cure}",
            )
        if nearest == place:
            privacy.refuse_open(place)
            with contextlib.suppress(ImportError):  # a missing package is told by itself
                from txtopo.state import credentials

                credentials.owner_of_directory(place)
    except OSError as error:  # of another user
        return _of_error(name, directory.unusable(place, error))
    except errors.TxtopoError as error:
        return _of_error(name, error)
    return _writable(name, nearest, place, DISK_FREE_MIN_BYTES, cure)


def _data_dir_of_settings() -> Path:
    """The default where the settings cannot be read: a package is missing, or the trial names the
    mistake."""
    try:
        from txtopo.config import sources

        data_dir = sources.resolve().config.data_dir
    except (ImportError, errors.TxtopoError):
        data_dir = None
    return data_dir or Path(directory.DEFAULT)


def _nearest(path: Path) -> Path:
    """``path``, or the directory above in which it can be made."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _temporary() -> Check:
    name, cure = "temporary files", "Set TMPDIR to a directory that is writable and has room."
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return Check(name, "missing", str(error), cure)
    return _writable(name, place, place, TEMPORARY_FREE_MIN_BYTES, cure)


def _writable(name: str, place: Path, shown: Path, free_min: int, cure: str) -> Check:
    """Whether files can be made in ``place``, on a disk with ``free_min`` bytes."""
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check(name, "missing", f"{shown} is not writable: {error.strerror}", cure)
    if free < free_min:
        return Check(
            name,
            "missing",
            f"{shown} has {_size(free)} free, {_size(free_min)} are needed",
            f"Make room. {cure}",
        )
    return Check(name, "ok", f"{shown}, {_size(free)} free")


def _memory() -> Check:
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    # A container may have less than its host.
    for file in (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        if file.is_file() and (text := file.read_text(encoding="ascii").strip()).isdecimal():
            limits.append(int(text))
    total = min(limits)
    if total < MEMORY_ADVISED_BYTES:
        cure = "Large batches may end with OutOfMemoryError: make batches smaller, or give the machine more memory."
        return Check(
            "memory", "note", f"{_size(total)}; {_size(MEMORY_ADVISED_BYTES)} are advised", cure
        )
    return Check("memory", "ok", _size(total))


def _size(count: int) -> str:
    return f"{count / (1 << 30):,.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"
