"""Notes about calls of hooks: in a list of this process, or in a file that a test has made."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.topologies.recording import journal_file, note
from txtopo.testing.contracts.worker_process import WorkerProcess


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_call_that_no_test_waits_for_leaves_no_file(
    process: WorkerProcess, temporary: Path
) -> None:
    note(process.task(topology_id="unread"), "close")
    assert list(temporary.iterdir()) == []


def test_a_call_is_noted_in_the_file_of_its_topology(process: WorkerProcess) -> None:
    journal_file("read").touch()
    note(process.task(topology_id="read"), "execute", 1)
    note(process.task(topology_id="read", phase="processing"), "close")
    assert [json.loads(line) for line in journal_file("read").read_text().splitlines()] == [
        ["count", 0, "commit", "execute", [1]],
        ["count", 0, "processing", "close", []],
    ]
