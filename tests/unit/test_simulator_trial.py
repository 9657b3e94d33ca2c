"""A whole test of a topology: output while it runs, the end, and the verdict for a program."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.starter.commands import BIN, ROOT
from tests.topologies import simulated_elsewhere
from txtopo import errors
from txtopo.command import cli, simulation_report
from txtopo.testing import Simulation, check_topology
from txtopo.testing.simulator import mistakes, parallel, trial
from txtopo.testing.simulator.trial import UNBOUNDED, Trial, TrialProgress

CONF = {"max_spout_pending": 2}
HERE = "tests.topologies.simulated_elsewhere"


@pytest.fixture
def no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose claim is not about processes with other hash seeds, which take a second."""
    monkeypatch.setattr(Simulation, "recompute", lambda simulation: None)


def document_of(
    capsys: pytest.CaptureFixture[str], name: str, *more: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and document."""
    code = cli.main(["test", f"{HERE}:{name}", "--seeds", "20", "--json", *more])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == code
    return code, said


def test_the_document_of_no_violation_names_the_compared_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = document_of(capsys, "right")
    assert (code, said["verdict"], said["schedules"], said["is_partial"], said["violation"]) == (
        0,
        "no violation",
        20,
        False,
        None,
    )
    assert said["compared"]["stores"] == ["/nowhere/elsewhere.db#sums"]
    assert said["could_not_look"] == []


def test_the_document_of_a_violation_has_component_mistake_cure_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = document_of(capsys, "wrong", "--transactions", "3")
    violation = said["violation"]
    assert (code, said["verdict"], violation["component"]) == (1, "violation", "sums")
    assert all(mistake["cure"] for mistake in violation["mistakes"])
    assert violation["contract"]["rule"] == 28
    assert (
        violation["again"]
        == f"txtopo test {HERE}:wrong --transactions 3 --seed {violation['seed']} --seeds 1"
    )


@pytest.mark.rule(10)
def test_the_document_of_a_bolt_that_only_processes_names_it_before_the_first_schedule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = document_of(capsys, "keeps")
    violation = said["violation"]
    assert (code, said["schedules"], violation["component"], violation["seed"]) == (
        1,
        0,
        "processing",
        None,
    )
    assert [mistake["name"] for mistake in violation["mistakes"]] == [mistakes.MODULE_GLOBAL.name]
    assert (violation["contract"]["contract"], violation["contract"]["rule"]) == ("bolt", 10)
    assert violation["contract"]["hook"] == "component 'processing'"
    assert violation["contract"]["cure"]


def test_the_document_of_unseen_effects_names_the_component_and_the_head_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = cli.main(["test", f"{HERE}:unseen", "--seeds", "2", "--json"])
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (code, said["verdict"]) == (7, "could not look")
    assert [unseen["component"] for unseen in said["could_not_look"]] == ["sums"]
    assert captured.err.startswith(
        "warning: 'sums' commits to a system that is no txtopo store or sink, and that is called for real:"
    )


def test_the_document_of_an_error_is_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["test", f"{HERE}:nothing", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["verdict"], said["exit_code"]) == (2, "error", 2)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_other_processes")
def test_several_processes_come_to_the_same_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = document_of(capsys, "right", "--jobs", "2")
    assert (code, said["schedules"], said["is_partial"]) == (0, 20, False)
    assert said["faults"] == document_of(capsys, "right")[1]["faults"]


def test_outside_systems_exist_once_so_that_only_one_process_may_change_them() -> None:
    with pytest.raises(errors.UsageError, match="Leave out -j"):
        Trial(simulated_elsewhere.right, CONF, {"reset": lambda: None}, 1, processes=2).run()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes whenever a trial looks at the clock."""
    looks = itertools.count()
    monkeypatch.setattr(trial, "time", types.SimpleNamespace(monotonic=lambda: float(next(looks))))


@pytest.mark.usefixtures("no_other_processes", "seconds")
def test_time_bounds_the_schedules() -> None:
    report = Trial(simulated_elsewhere.right, CONF, {}, UNBOUNDED, time_s=3000.0).run()
    assert report.schedules > 0
    assert (report.is_partial, report.violation) == (False, None)


@pytest.mark.usefixtures("no_other_processes", "seconds")
def test_fewer_than_were_asked_for_is_said_to_be_partial() -> None:
    report = Trial(simulated_elsewhere.right, CONF, {}, 1000, time_s=100.0).run()
    assert report.is_partial
    assert report.schedules < 1000


@pytest.mark.usefixtures("no_other_processes", "seconds")
def test_the_least_number_of_schedules_is_played_after_the_time() -> None:
    report = Trial(simulated_elsewhere.right, CONF, {}, UNBOUNDED, time_s=1.0, seeds_min=3).run()
    assert (report.schedules, report.is_partial, report.violation) == (3, False, None)
    assert ": 3 schedules of " in str(report)


@pytest.mark.parametrize(
    ("typed", "bounds"),
    [
        ([], (UNBOUNDED, 10.0, 50)),
        (["--seeds", "7"], (7, None, 0)),
        (["--time", "1m"], (UNBOUNDED, 60.0, 0)),
        (["--seeds", "7", "--time", "1m"], (7, 60.0, 0)),
    ],
)
def test_without_options_ten_seconds_and_fifty_schedules_are_the_bounds(
    typed: list[str],
    bounds: tuple[int, float | None, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, float | None, int]] = []

    def run(trial: Trial) -> None:
        seen.append((trial.seeds, trial.time_s, trial.seeds_min))
        raise errors.UsageError("enough")

    monkeypatch.setattr(Trial, "run", run)
    assert cli.main(["test", f"{HERE}:right", *typed]) == 2
    assert seen == [bounds]


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("60s", 60.0), ("90", 90.0), ("5m", 300.0), ("1h", 3600.0), ("0.5s", 0.5)],
)
def test_a_time_has_a_unit(typed: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []

    def run(trial: Trial) -> None:
        seen.append(trial.time_s)
        raise errors.UsageError("enough")

    monkeypatch.setattr(Trial, "run", run)
    assert cli.main(["test", f"{HERE}:right", "--time", typed]) == 2
    assert seen == [seconds]


@pytest.mark.parametrize("typed", ["soon", "0s", "-1m", "s", "inf"])
def test_a_text_that_is_no_time_is_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test", f"{HERE}:right", f"--time={typed}"]) == 2
    assert "write 60s, 5m or 1h" in capsys.readouterr().err


@pytest.mark.thorough
def test_ctrl_c_ends_with_the_results_so_far() -> None:
    """The first line of a log comes within two seconds, though one schedule takes longer."""
    command = [str(BIN / "txtopo"), "test", f"{HERE}:slow", "--seeds", "10000", "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        line = process.stderr.readline()
        assert line.startswith("txtopo test: ")
        while "of 10,000 schedules" not in line:
            line = process.stderr.readline()
            assert line, "it says how many schedules it has played"
        process.send_signal(signal.SIGINT)
        said = json.loads(process.stdout.read())
        assert process.wait(PATIENCE_S) == 130
    assert (said["verdict"], said["is_partial"], said["violation"]) == ("stopped", True, None)


@pytest.mark.usefixtures("no_other_processes")
def test_progress_says_how_far_it_is_how_fast_and_how_long_it_will_take() -> None:
    progress = TrialProgress(seeds=10)
    assert str(progress) == "a run without failures"
    trial = Trial(simulated_elsewhere.right, CONF, {}, 10, progress=progress)
    trial.run()
    assert str(progress).startswith("10 of 10 schedules, ")
    assert " left, " in str(progress)
    assert str(progress).endswith(" faults, no violation so far")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_rewritten_and_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation_report, "REWRITE_S", 0.0)
    terminal = Terminal()
    with simulation_report.shown(TrialProgress(), terminal):
        wait_until(lambda: "a run" in terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


def test_a_terminal_that_has_gone_ends_the_progress_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that leaves the thread fails this test, as pytest's warning."""
    tried = threading.Event()

    class Gone(Terminal):
        def write(self, text: str) -> int:
            tried.set()
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(simulation_report, "REWRITE_S", 0.0)
    with simulation_report.shown(TrialProgress(), Gone()):
        assert tried.wait(PATIENCE_S)


@pytest.mark.parametrize("said", ["nonsense", '{"schedules": 1, "fau'], ids=["nonsense", "a part"])
def test_a_process_that_says_nonsense_is_an_error_and_no_verdict(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import signal\nprint({said!r}, flush=True)\nsignal.pause()"
    started: list[subprocess.Popen[bytes]] = []

    def start(*ignored: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(parallel, "_start", start)
    with Simulation(simulated_elsewhere.right, CONF) as simulation:
        with pytest.raises(errors.UsageError, match="a process that played schedules has died"):
            parallel.run(simulation, CONF, {}, simulation.report(), 4, 0, 2, lambda: True)
    assert [child.returncode for child in started] == [-signal.SIGKILL] * 2


def test_no_process_is_left_if_another_one_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*ignored: object) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        waits = [sys.executable, "-c", "import signal\nsignal.pause()"]
        started.append(subprocess.Popen(waits, stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(parallel, "_start", start)
    with Simulation(simulated_elsewhere.right, CONF) as simulation:
        with pytest.raises(OSError, match="temporarily"):
            parallel.run(simulation, CONF, {}, simulation.report(), 4, 0, 2, lambda: True)
    assert [child.returncode for child in started] == [-signal.SIGKILL]


@pytest.mark.usefixtures("no_other_processes")
def test_a_check_fails_with_the_verdict() -> None:
    with pytest.raises(AssertionError) as failed:
        check_topology(simulated_elsewhere.wrong, CONF, seeds=20)
    assert str(failed.value).startswith("VIOLATION by component 'sums': ")
    assert check_topology(simulated_elsewhere.right, CONF, seeds=3).schedules == 3


@pytest.mark.usefixtures("no_other_processes")
def test_a_check_fails_if_it_cannot_look_unless_that_is_said_to_be_right() -> None:
    with pytest.raises(AssertionError, match="component 'sums' writes where"):
        check_topology(simulated_elsewhere.unseen, CONF, seeds=2)
    assert check_topology(simulated_elsewhere.unseen, CONF, seeds=2, may_be_unseen=True).unseen


def test_the_plugin_gives_the_fixture_and_imports_no_simulator_until_it_is_used(
    tmp_path: Path,
) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import sys\n\n\ndef test_nothing():\n"
        "    names = {'pyspark', 'kazoo', 'pydantic', 'txtopo.runtime', 'txtopo.testing.simulator'}\n"
        "    assert not names & set(sys.modules)\n\n\n"
        f"def test_right(txtopo_test):\n    from {HERE} import right\n    assert txtopo_test(right, seeds=3).schedules == 3\n\n\n"
        f"def test_wrong(txtopo_test):\n    from {HERE} import wrong\n    txtopo_test(wrong, seeds=20)\n"
    )
    plugins = ["-p", "txtopo.testing.plugin", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        *plugins,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, str(test)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "VIOLATION by component 'sums': " in done.stdout


@pytest.mark.thorough
def test_the_plugin_is_in_the_wheel_with_its_entry_point(tmp_path: Path) -> None:
    """Found by pytest by itself: a fixture of an installed txtopo."""
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(tmp_path / "dist"),
    ]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").glob("txtopo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (entries,) = (tmp_path / "installed").glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\ntxtopo = txtopo.testing.plugin\n" in entries.read_text()
    (tmp_path / "test_it.py").write_text(
        "def test_it(txtopo_test):\n    assert txtopo_test.__name__ == 'check_topology'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_every_mistake_has_a_reason_and_a_cure() -> None:
    known = [
        mistake for mistake in vars(mistakes).values() if isinstance(mistake, mistakes.Mistake)
    ]
    assert len({mistake.name for mistake in known}) == len(known) > 15
    assert all(mistake.why and mistake.cure.endswith(".") for mistake in known)
