"""``txtopo page``, ``txtopo run --page`` and ``txtopo history --html``: options, refusals, files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import patience
from tests.canned_run import of_a_while
from txtopo.command import cli
from txtopo.runtime import cluster

TARGET = "starter/word_count.py"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*arguments: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(cluster, "Submission", submit)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    of_a_while(tmp_path, 8).end()
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main([*arguments]) == 2
    return capsys.readouterr().err


def test_a_port_in_use_ends_a_run_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        told = error_of(capsys, "run", TARGET, "--page", port, "--data-dir", str(tmp_path))
    assert f"cannot listen on port {port} of 127.0.0.1: Address already in use\n" in told
    assert "Give another --page [HOST:]PORT, or 0 for any free port." in told


@pytest.mark.parametrize(
    ("options", "fact", "cure"),
    [
        (["--page", "0", "--set", "journal=off"], "journal=off keeps none", "Set journal=full"),
        (["--page", "0.0.0.0:0"], "other machines reach", "--page-token-file FILE"),
        (["--page-token-file", "x"], "--page-token-file is for a page", "Give --page"),
        (["--page", "0", "--page-token-file", "no-file"], "no token in no-file", "Make one"),
    ],
)
def test_impossible_pages_are_refused_with_the_cure(
    capsys: pytest.CaptureFixture[str], options: list[str], fact: str, cure: str
) -> None:
    told = error_of(capsys, "run", TARGET, *options)
    assert fact in told
    assert cure in told


def test_a_page_without_its_packages_names_the_line_for_pip(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delattr("txtopo.page.server", raising=False)
    monkeypatch.delitem(sys.modules, "txtopo.page.server", raising=False)
    told = error_of(capsys, "page", "words", "--data-dir", str(data_dir))
    assert "pip install 'txtopo[page]'" in told


def test_a_page_of_no_journal_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = error_of(capsys, "page", "words", "--data-dir", str(tmp_path))
    assert "there is no journal of topology 'words' in" in told


def test_a_page_of_a_dead_run_is_served_until_the_first_signal(
    data_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pages: list[str] = []

    def visit() -> None:
        told = ""

        def address() -> str | None:
            nonlocal told
            told += capfd.readouterr().err
            match = re.search(r"^txtopo: page: (http://127\.0\.0\.1:\d+/\?token=\S+)$", told, re.M)
            return match and match[1]

        try:
            patience.wait_until(address, "the page's address")
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(str(address()), timeout=patience.PATIENCE_S) as answer:
                pages.append(answer.read().decode())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    visitor.start()
    assert cli.main(["page", "words", "--data-dir", str(data_dir)]) == 0
    visitor.join()
    assert "<title>txtopo</title>" in pages[0]


def test_history_writes_the_page_with_its_data_into_one_file(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["history", "words", "--data-dir", str(data_dir), "--html"]
    file = tmp_path / "words.html"
    assert cli.main([*place, str(file)]) == 0
    assert '"txid": 8' in file.read_text()
    assert "cannot write" in error_of(capsys, *place, str(tmp_path / "none" / "words.html"))
    assert "--html goes with none of" in error_of(capsys, *place, str(file), "--failed")
