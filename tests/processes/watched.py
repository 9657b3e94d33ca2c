"""A driver with a page, which a test looks at, stops and kills; and the pictures for the docs.

``python -m tests.processes.watched`` takes the pictures, of a real run, into ``docs/images``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import patience
from tests.servers import browser, ports
from tests.servers.browser import wait_for
from tests.topologies import watched_words

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
_ADDRESS = re.compile(r"^txtopo: page: (\S+)$", re.MULTILINE)


class Driver:
    """``txtopo run words.py --page`` in ``directory``, with a copy of
    ``tests.topologies.watched_words``, so that tracebacks name no checkout."""

    def __init__(self, directory: Path, port: int) -> None:
        shutil.copy(str(watched_words.__file__), directory / "words.py")
        self._lines = directory / f"{port}.txt"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._lines.open("w") as lines:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "txtopo", "run", "words.py", "--page", str(port)],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=lines,
            )

    def address(self) -> str:
        """The page's address, with the token."""
        patience.wait_until(
            lambda: self.process.poll() is not None or _ADDRESS.search(self._lines.read_text()),
            "the page's address",
        )
        address = _ADDRESS.search(self._lines.read_text())
        assert address is not None, self._lines.read_text()
        return address[1]

    def end(self, signum: int) -> int:
        """Send a signal, and wait for the end. Returns the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(patience.PATIENCE_S)


@contextlib.contextmanager
def driver(directory: Path, port: int) -> Iterator[Driver]:
    """A driver that is killed at the end, if it still runs."""
    running = Driver(directory, port)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)


def take_pictures() -> None:
    """Take pictures of the page, light and dark."""
    with (
        tempfile.TemporaryDirectory(prefix="txtopo-pictures-") as directory,
        driver(Path(directory), ports.free_port()) as running,
        browser.browser() as chrome,
    ):
        chrome.get(running.address())
        wait_for(chrome, "[data-key^='16:'] .commit")
        wait_for(chrome, "[data-key='14:0'] .failed")
        for scheme in ("light", "dark"):
            browser.show(chrome, 1200, 1400, scheme)
            wait_for(chrome, "[data-key] .processing")
            chrome.save_screenshot(str(IMAGES / f"page-{scheme}.png"))


if __name__ == "__main__":
    take_pictures()
