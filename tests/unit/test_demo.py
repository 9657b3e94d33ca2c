"""``txtopo demo`` and ``make demo`` run one file of the package; make installs all packages for the
run."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txtopo import Config, demo
from txtopo.command import cli, main, target
from txtopo.topology.graph import TopologyGraph

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("ends", [0, 1])
def test_the_command_runs_that_file_until_its_input_ends_and_then_compares(
    ends: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Any] = []

    def run(
        topology: TopologyGraph,
        conf: Config,
        arguments: argparse.Namespace,
        afterwards: Callable[[], int],
    ) -> int:
        ran.append((topology.id, conf.until, str(conf.data_dir), arguments.master))
        monkeypatch.setattr(sys.modules[target.FILE_MODULE], "main_report", lambda: ends)
        return afterwards()

    monkeypatch.setattr(main, "run", run)
    assert cli.main(["demo", "--master", "local[2]"]) == ends
    assert ran == [("stdlib-words", "exhausted", demo.DATA_DIR, "local[2]")]


# -- make ----------------------------------------------------------------------------------------


def would_run(checkout: Path, target: str) -> str:
    """What ``make target`` would do."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as make looks at."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests" / "servers").mkdir(parents=True)
    for name in ("servers/fetch.py", "servers/jars.py", "servers/browser.py", "quick_java.py"):
        (tmp_path / "tests" / name).touch()
    return tmp_path


def installed(checkout: Path, *stamps: str) -> None:
    """As after an installation that took place after ``pyproject.toml`` was written."""
    for stamp in stamps:
        (checkout / ".venv").mkdir(exist_ok=True)
        (checkout / ".venv" / stamp).touch()


def test_the_demo_installs_the_packages_for_running_and_says_so_before(checkout: Path) -> None:
    steps = would_run(checkout, "demo")
    says, installs, runs = (
        steps.index("installing txtopo and what running it needs"),
        steps.index("--editable ."),
        steps.index("txtopo demo"),
    )
    assert says < installs < runs
    assert "[dev]" not in steps
    assert "--quiet" not in steps


def test_tests_install_the_packages_for_developing_also_after_the_demo(checkout: Path) -> None:
    installed(checkout, ".made", ".installed-to-run")
    assert "pip install" not in would_run(checkout, "demo")
    assert "--editable '.[dev]'" in would_run(checkout, "test")


def test_the_packages_for_developing_include_those_of_the_demo(checkout: Path) -> None:
    installed(checkout, ".made")
    assert "touch .venv/.installed-to-run .venv/.installed\n" in would_run(checkout, "lint")
    installed(checkout, ".installed-to-run", ".installed", ".servers")
    assert "pip install" not in would_run(checkout, "demo") + would_run(checkout, "test")
