"""Readers of an idle data directory, or of a directory whose run is ending: they start no server,
hold no lock and change no file."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.processes import owners, readers
from txtopo import Visibility, visible_txid
from txtopo.command import cli
from txtopo.state import directory


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """A data directory in which three transactions were recorded by an owner that was killed."""
    with owners.Owner(tmp_path / "state", readers.RECORDING) as owner:
        report = owner.report()
        assert report["committed"] == 3
        watchdog = owners.parent_of(report["pid"])
        owner.kill()
        # The watchdog ends the server, and writes the server's last words.
        assert owners.has_ended(watchdog)
    return tmp_path / "state"


def listing(data_dir: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in data_dir.rglob("*")
    )


@pytest.mark.rule(37)
def test_a_look_changes_nothing_starts_nothing_and_needs_no_java(
    idle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    before = listing(idle)
    assert visible_txid("words", data_dir=idle) == 3
    assert cli.main(["status", "--data-dir", str(idle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topologies"][0]["running"] is False
    for command in (
        ["status"],
        ["state", "show", "words"],
        ["state", "reset", "words"],
        ["state", "restored", "words"],
    ):
        assert cli.main([*command, "--data-dir", str(idle)]) == 0
    assert listing(idle) == before
    assert owners.processes_of(idle) == []


@pytest.mark.rule(37)
def test_a_directory_is_owned_while_readers_look_at_its_lock(idle: Path) -> None:
    for _ in range(20):
        assert not directory.is_owned(idle)
        owned = directory.DataDirectory(idle)
        owned.acquire()
        assert directory.is_owned(idle)
        assert visible_txid("words", data_dir=idle) == 3
        owned.release()


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_a_server_that_died_while_its_owner_lives_is_not_waited_for(
    idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        owners.Owner(idle, readers.RECORDING) as owner,
        Visibility("words", data_dir=idle) as visibility,
    ):
        report = owner.report()
        assert visibility.txid() == report["committed"] == 6
        os.kill(report["pid"], signal.SIGKILL)
        assert owners.has_ended(report["pid"])
        assert visibility.txid() == 6
        assert cli.main(["status", "words", "--data-dir", str(idle)]) == 0
        assert "committed     6" in capsys.readouterr().out
        owner.kill()
    assert visible_txid("words", data_dir=idle) == 6


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_commands_that_change_the_state_own_the_directory_only_with_execute(
    idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owned = directory.DataDirectory(idle)
    owned.acquire()
    assert cli.main(["state", "reset", "words", "--data-dir", str(idle)]) == 0
    assert "would remove" in capsys.readouterr().out
    owned.release()
    assert cli.main(["state", "reset", "words", "--data-dir", str(idle), "--execute"]) == 0
    assert "removed from" in capsys.readouterr().out
    assert cli.main(["status", "--data-dir", str(idle)]) == 0
    assert "no topology has state in" in capsys.readouterr().out
