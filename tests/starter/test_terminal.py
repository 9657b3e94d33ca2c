"""A program on a terminal: output at once, the line of a run during waits, and no output of Java."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.starter.commands import ROOT, _environment
from tests.starter.test_snippets import snippets


def seen_on_a_terminal(program: Path) -> tuple[int, str]:
    """The exit code of ``program``, and all its output to its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, program.name],
        cwd=program.parent,
        env=_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:
        pass  # Linux's sign that no process has the terminal open any more.
    finally:
        os.close(ours)
    return process.wait(PATIENCE_S), seen.decode()


@pytest.mark.thorough
def test_the_program_of_the_readme_reports_its_start_at_once_and_then_its_progress(
    tmp_path: Path,
) -> None:
    (readme, *_) = snippets(ROOT / "README.md")
    (tmp_path / "words.py").write_text(readme.code)
    code, seen = seen_on_a_terminal(tmp_path / "words.py")
    assert code == 0, seen
    lines = seen.split("\r\n")
    assert lines[0] == "txtopo: starting Spark …"
    assert lines[1].startswith("txtopo: words begins at txid 1 ")
    assert "\r" in seen.replace("\r\n", "")
    assert "in flight" in seen
    assert "Java" not in seen
    assert "WARN" not in seen
    ends, result = lines[-3:-1]
    assert ends.endswith(
        "\x1b[Ktxtopo: words stopped: 2 transactions committed, 3 tuples, 0 replays; the next run begins at txid 3"
    )
    assert f"{result}\n" == readme.output
