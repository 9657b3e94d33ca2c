"""Every way a command can end has its exit code and one clear message; a Python traceback only
comes with -v."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import txtopo
from txtopo import errors
from txtopo.command import cli, main, target
from txtopo.runtime import cluster
from txtopo.state import opening
from txtopo.state.directory import DataDirectory

TOPOLOGY = """
from txtopo import BaseBatchBolt, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout


class Swallow(BaseBatchBolt):
    def execute(self, tup):
        pass


topology = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout({0: [("a",)]}, ["word"], 1))
topology.set_bolt("swallow", Swallow()).shuffle_grouping("spout")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["words.py"])
    (tmp_path / "words.py").write_text(TOPOLOGY)
    return tmp_path


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.TxtopoError("it broke\n  mend it"), 1, "txtopo: error: it broke\n  mend it\n"),
        (
            errors.UserCodeError(
                "count", 0, "3:1", "commit", "execute", "ValueError: no", "Traceback …"
            ),
            1,
            "no\n  in component 'count'",
        ),
        (errors.UsageError("not so"), 2, "txtopo: error: not so\n"),
        (
            errors.InvalidTopologyError("words", ("a", "b")),
            2,
            "'words' is not valid:\n  - a\n  - b\n",
        ),
        (errors.PoisonBatchError(3, 5, "ValueError: no"), 3, "transaction 3 failed 5 times"),
        (errors.FencedError("held"), 4, "txtopo: error: held\n"),
        (errors.ZooKeeperUnavailableError("gone"), 5, "txtopo: error: gone\n"),
        (errors.StateMismatchError("older"), 6, "txtopo: error: older\n"),
        (KeyError("x"), 1, "txtopo: error: KeyError: 'x'\n  -v shows the place in the code.\n"),
        (KeyboardInterrupt(), 130, "txtopo: interrupted\n"),
    ],
)
def test_an_error_becomes_its_exit_code_and_its_message(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.exit_code_of(raising(error), verbose=False) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback (most recent call last)" not in err


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    ("error", "code", "page"),
    [
        (errors.ConfigError("not so"), 2, "configuration.html#every-setting"),
        (errors.PoisonBatchError(3, 5, "KeyError: 1"), 3, "errors.html#it-ends-with-an-error"),
        (errors.HeldError("held"), 4, "availability.html"),
        (errors.ZooKeeperUnavailableError("gone"), 5, "zookeeper.html#what-happens-when"),
        (errors.StateMismatchError("older"), 6, "errors.html#exit-code-6"),
    ],
)
def test_a_message_ends_with_the_address_of_its_page(
    error: Exception,
    code: int,
    page: str,
    log_format: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cluster, "Submission", lambda *arguments, **more: raising(error)())
    line = ["run", "words.py", "--log-format", log_format, "--data-dir", "of words"]
    assert cli.main(line) == code
    said = capsys.readouterr().err
    if log_format == "json":
        said = json.loads(said.splitlines()[-1])["msg"]
    *before, last = said.splitlines()
    assert last == f"  See {errors.PAGES}{page}"
    assert ("--data-dir 'of words'" in before[-1]) == (code == 6)


@pytest.mark.parametrize("error", [errors.UsageError("not so"), KeyError("x")])
def test_verbose_shows_the_traceback_too(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    main.exit_code_of(raising(error), verbose=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_program_that_runs_its_topology_ends_with_the_code_and_may_go_on_if_there_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        txtopo.main("no topology", argv=[])
    assert end.value.code == 2
    assert (
        "the first argument of txtopo.main is of type str, not a topology"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit) as end:
        txtopo.main(target.resolve("words.py").topology, argv=["--sett", "x=1"])
    assert end.value.code == 2
    assert (
        "txtopo: error: unrecognized arguments: --sett x=1\n  `words.py --help` shows"
        in capsys.readouterr().err
    )


def test_a_master_given_to_a_program_inside_spark_submit_comes_too_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert cli.main(["run", "words.py", "--master", "local[2]"]) == 2
    assert "--master local[2] comes too late" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["validate"], ["explain"], ["run"], ["submit"]], ids=" ".join)
@pytest.mark.parametrize("inside_spark_submit", [False, True])
def test_a_secret_in_the_address_of_a_master_is_not_shown(
    command: list[str],
    inside_spark_submit: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if inside_spark_submit:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    for master in ("sc://host:15002/;token=hunter2", "mesos://alice:hunter2@host:5050"):
        assert cli.main([*command, "words.py", "--master", master]) == 2
        said = capsys.readouterr().err
        assert "://" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("command", ["run", "submit", "explain", "validate"])
@pytest.mark.parametrize("master", ["local[x]", "local-cluster[2,1]", "local[0.5]"])
def test_a_local_master_that_cannot_be_read_is_refused_with_how_it_is_written(
    command: str, master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "words.py", "--master", master]) == 2
    fact, cure = capsys.readouterr().err.split("\n", 1)
    assert master in fact
    assert "Give local[N]" in cure


def test_without_java_nothing_is_begun(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    assert cli.main(["run", "words.py"]) == 2
    assert "txtopo: error: JAVA_HOME is '/no/such/java'" in capsys.readouterr().err
    assert not (place / ".txtopo").exists()


def test_a_zookeeper_that_cannot_be_reached_is_found_out_before_spark_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        cli.main(
            [
                "run",
                "words.py",
                "--zookeeper",
                "127.0.0.1:1",
                "--set",
                "zookeeper_connect_timeout_s=0.2",
            ]
        )
        == 5
    )
    assert "txtopo: error: no ZooKeeper answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_ends_the_wait_for_a_zookeeper_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signum: signal.Signals,
    code: int,
) -> None:
    def never_answers(*arguments: object) -> None:
        signal.raise_signal(signum)
        raise AssertionError("the wait went on")

    monkeypatch.setattr(main, "ZooKeeperStateStore", never_answers)
    assert cli.main(["run", "words.py", "--zookeeper", "127.0.0.1:1"]) == code
    assert "interrupted before the run began" in capsys.readouterr().err


def test_a_data_directory_in_use_is_refused_naming_the_process(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = DataDirectory(place / "data")
    owner.acquire()
    try:
        assert cli.main(["run", "words.py", "--data-dir", "data"]) == 4
        assert f"{place / 'data'} is in use by process {os.getpid()}" in capsys.readouterr().err
        (place / "data" / "zookeeper" / "version-2").mkdir(parents=True)
        (place / "data" / "zookeeper" / "version-2" / "log.1").touch()
        monkeypatch.setattr(opening, "STARTING_WAIT_S", 0.0)
        assert cli.main(["state", "reset", "words", "--data-dir", "data", "--execute"]) == 4
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err
        assert cli.main(["status", "--data-dir", "data"]) == 0, "a reader waits for nobody"
        assert "no topology has state in" in capsys.readouterr().out
    finally:
        owner.release()


def test_where_nothing_was_ever_stored_status_says_so_and_makes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out.startswith(
        "nothing is stored in .txtopo: no topology has run with this data directory\n"
    )
    assert cli.main(["status", "--json"]) == 0
    assert capsys.readouterr().out == '{\n  "schema_version": 1,\n  "topologies": []\n}\n'
    for command in (
        ["status", "words"],
        ["state", "show", "words"],
        ["state", "reset", "words"],
        ["status", "--data-dir", "elsewhere"],
    ):
        assert cli.main(command) == 2
    assert sorted(path.name for path in place.iterdir()) == ["words.py"]
    assert cli.main(["status", "--data-dir", str(place), "--zookeeper", "127.0.0.1:1"]) == 2
    assert "either in --data-dir or in --zookeeper" in capsys.readouterr().err


def test_a_simulation_that_could_not_look_at_all_effects_ends_with_7(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["test", "words.py", "--seeds", "1"]) == 7
    shown = capsys.readouterr().out
    assert "no violation in the compared effects\n" in shown
    assert (
        "nothing is compared: no component has a store, a sink or a commit\n  Define effects()"
        in shown
    )
