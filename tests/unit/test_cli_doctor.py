"""``txtopo doctor`` names each missing thing with its cure, and its exit code says whether a run
can start."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers import ports
from txtopo.command import cli, doctor
from txtopo.errors import SetupError
from txtopo.spark import session
from txtopo.state import directory, java

ROOT = Path(__file__).resolve().parents[2]


class Usage(NamedTuple):
    """Of a disk, as shutil tells it."""

    total: int
    used: int
    free: int


TRIAL = doctor._TRIAL


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is missing, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(java, "require_java", lambda: java.Java("/usr/bin/java", 17))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(doctor, "_TRIAL", "")
    return tmp_path


def check(name: str, environment: Mapping[str, str] | None = None) -> doctor.Check:
    (result,) = (
        check for check in doctor.checks(environment or {}, Path(".txtopo")) if check.name == name
    )
    return result


def raising(error: Exception) -> Any:
    def fail(*arguments: object, **more: object) -> None:
        raise error

    return fail


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Have ``package`` not installed."""
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_whole_installation_can_run_and_leaves_no_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\n\na run can start here\n")
    packages, machine = (
        ("pyspark", "kazoo", "pydantic", "cloudpickle"),
        ("data directory", "temporary files", "memory"),
    )
    for name in ("Python", "Java", *packages, *machine, "Spark"):
        assert f"  {name} " in said
    assert list(place.iterdir()) == []


def test_json_has_every_check_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["can_run"] is True
    assert {
        "name": "Java",
        "status": "ok",
        "fact": "17, /usr/bin/java, from the PATH",
        "cure": None,
    } in document["checks"]


def test_a_missing_java_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        java,
        "require_java",
        raising(SetupError("Java was not found\n  Install Java 17,\n  or set JAVA_HOME.")),
    )
    assert cli.main(["doctor"]) == SetupError.exit_code
    said = capsys.readouterr().out
    assert "missing   Java " in said
    assert "Install Java 17,\n" in said
    assert said.endswith("a run cannot start here: Java missing\n")


def test_the_source_of_java_is_named() -> None:
    assert check("Java", {"JAVA_HOME": "/opt/java"}).fact.endswith("from JAVA_HOME")


@pytest.mark.parametrize("package", ["kazoo", "pyspark"])
def test_a_missing_package_is_told_with_the_line_for_pip(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, package)
    result = check(package)
    assert (result.status, result.fact) == ("missing", "is not installed")
    assert str(result.cure).startswith(f"Type: pip install '{package}")


def test_a_package_of_another_version_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_requirements", lambda: (("kazoo", ">=99.1,<100", None),))
    result = check("kazoo")
    assert result.status == "missing"
    assert result.fact.endswith("is installed; >=99.1,<100 is needed")


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("4.1.0", ">=4.1,<5", True),
        ("4.1", ">=4.1.0,<5", True),
        ("4.10.2", ">=4.9", True),
        ("5.0.0", ">=4.1,<5", False),
        ("4.0.9", ">=4.1,<5", False),
        ("4.2.0.dev1", ">=4.1,<5", True),
        ("1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, expected: bool) -> None:
    assert doctor._is_within(version, bounds) is expected


def test_an_absent_extra_is_told_with_the_line_for_pip_and_keeps_nothing_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "redis")
    monkeypatch.setattr(
        doctor, "_requirements", lambda: (("redis", ">=5.2", "redis"), ("hatchling", "", "dev"))
    )
    assert check("[redis]") == doctor.Check(
        "[redis]", "optional", "not installed: redis", "Type: pip install 'txtopo[redis]'"
    )
    assert cli.main(["doctor"]) == 0
    assert "[dev]" not in capsys.readouterr().out


def test_the_requirements_are_those_of_the_package() -> None:
    names = {(package, extra) for package, _, extra in doctor._requirements()}
    assert {("pyspark", None), ("kazoo", None), ("pyarrow", "arrow"), ("pymysql", "mysql")} <= names


def test_a_trial_that_fails_is_told_with_its_reason_and_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a user without a name: nothing else is missing."""
    says = "print('a warning of Java\\n\\0no name\\n  Give it one.', flush=True)"
    monkeypatch.setattr(doctor, "_TRIAL", f"import sys\n{says}\nsys.exit('at x.java\\nEnded.')")
    assert doctor.trial(Path()) == doctor.Check("Spark", "missing", "no name", "Give it one.")
    assert cli.main(["doctor"]) == SetupError.exit_code
    assert capsys.readouterr().out.endswith("a run cannot start here: Spark missing\n")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert str(doctor.trial(Path()).cure).startswith("Give it one.\nSPARK_HOME is /opt/spark. ")
    dies = "import os, sys\nsys.stderr.write('so many\\n' * 20 + 'the reason')\nsys.stderr.flush()\nos.kill(os.getpid(), 9)"
    monkeypatch.setattr(doctor, "_TRIAL", dies)
    died = doctor.trial(Path())
    assert (died.fact, "the reason" in str(died.cure)) == (
        "its trial ended with exit code -9",
        True,
    )


NAMELESS = """
import pwd
from txtopo.state import java
pwd.getpwuid = {}.__getitem__  # raises KeyError, as for a user without a name
java.require_java = lambda: java.Java("/bin/true", 17)  # in place of a ZooKeeper
"""


def test_the_trial_of_a_user_without_a_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TRIAL", NAMELESS + TRIAL)
    result = doctor.trial(Path())
    assert (result.name, result.status) == ("Spark", "missing")
    assert " has no name on this machine, " in result.fact
    assert "`RUN useradd --uid " in str(result.cure)


def test_a_trial_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TRIAL", "import signal; signal.pause()")
    monkeypatch.setattr(doctor, "TRIAL_S", 0.01)
    assert doctor.trial(Path()).fact == "no job has run within 0.01 s"


def test_nothing_is_tried_where_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "trial", raising(AssertionError("tried")))
    without(monkeypatch, "kazoo")
    assert cli.main(["doctor"]) == SetupError.exit_code
    assert "kazoo missing\n" in capsys.readouterr().out


def test_a_user_without_a_name_cannot_start_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", raising(KeyError("uid not found: 54321")))
    with pytest.raises(
        SetupError,
        match=r"the user \d+ has no name on this machine, .*\n .* with `RUN useradd --uid \d+ NAME`",
    ):
        session.spark_context("local[1]")


def test_a_data_directory_that_is_a_file_is_told(place: Path) -> None:
    (place / ".txtopo").touch()
    assert "is a file" in check("data directory").fact


def test_a_data_directory_that_every_user_may_write_is_told(place: Path) -> None:
    (place / ".txtopo").mkdir()
    (place / ".txtopo" / "notes.txt").touch()
    (place / ".txtopo").chmod(0o777)
    result = check("data directory")
    assert result.status == "missing"
    assert "every user may write to the data directory" in result.fact
    assert (result.cure or "").startswith("Type `chmod o-w ")


def test_the_data_directory_of_the_settings_is_tried(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXTOPO_DATA_DIR", str(place / "state"))
    (place / "state").mkdir()
    monkeypatch.setattr(doctor, "_TRIAL", "import sys; print('\\0' + sys.argv[1]); sys.exit(1)")
    assert cli.main(["doctor"]) == SetupError.exit_code
    said = capsys.readouterr().out
    assert f"{place}/state, " in said
    assert f"{place}/state/txtopo-doctor-" in said
    assert list((place / "state").iterdir()) == []


def test_a_data_directory_with_a_damaged_file_is_told(place: Path) -> None:
    (place / ".txtopo").mkdir(mode=0o700)
    (place / ".txtopo" / "user.json").write_text('{"user": "t')
    result = check("data directory")
    assert (result.status, "does not name its ZooKeeper's user" in result.fact) == ("missing", True)


AS_ANOTHER = """
import os, pathlib
from txtopo.command import doctor
if os.getuid() == 0:
    os.setuid(65534)
for place in (".txtopo", ".txtopo/deep"):
    check = doctor._data_dir(pathlib.Path(place))
    print(check.status, check.fact.endswith("cannot be used: Permission denied"), "--data-dir" in check.cure)
"""


def test_a_data_directory_of_another_user_is_told(place: Path) -> None:
    (place / ".txtopo").mkdir(mode=0o000)
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.stdout == "missing True True\n" * 2, done.stderr


@pytest.mark.thorough
def test_a_zookeeper_in_the_settings_that_does_not_answer_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_TRIAL", TRIAL)
    monkeypatch.setenv("TXTOPO_ZOOKEEPER", f"127.0.0.1:{ports.free_port()}")
    result = doctor.trial(Path())
    assert (result.status, "ZooKeeper" in result.fact) == ("missing", True)


def test_a_data_directory_in_use_is_told(place: Path) -> None:
    held = directory.DataDirectory(place / ".txtopo")
    held.acquire()
    try:
        result = check("data directory")
    finally:
        held.release()
    assert (result.status, "is in use by another run" in result.fact) == ("missing", True)


def test_a_data_directory_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tempfile, "TemporaryFile", raising(PermissionError(13, "Permission denied"))
    )
    result = check("data directory")
    assert (result.status, result.fact.endswith("is not writable: Permission denied")) == (
        "missing",
        True,
    )


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(1 << 40, 0, 10 << 20))
    assert check("data directory").fact.endswith("has 10 MiB free, 256 MiB are needed")
    assert check("temporary files").status == "missing"


def test_little_memory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 15)
    assert check("memory").status == "note"


def typed(absent: str, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command ``txtopo``, where the module ``absent`` cannot be imported, nor a Java started:
    the doctor then tries nothing."""
    code = f"import sys; sys.modules[{absent!r}] = None; from txtopo.command import entry; sys.exit(entry.main())"
    environment = {**os.environ, "JAVA_HOME": str(place)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("package", ["pyspark", "kazoo"])
def test_without_a_package_the_doctor_works_and_other_commands_name_the_package(
    package: str, place: Path
) -> None:
    assert (
        json.loads(typed(package, place, "doctor", "--json").stdout)["checks"][0]["name"]
        == "Python"
    )
    ended = typed(package, place, "status")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        f"txtopo: error: the package {package} is not installed\n  Type: "
    )


def test_an_error_of_another_import_is_not_hidden(place: Path) -> None:
    assert "ModuleNotFoundError: " in typed("txtopo.command.submit", place, "doctor").stderr
