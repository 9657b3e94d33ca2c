"""The page of a run with many transactions, drawn in a browser again and again."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.line import check
from tests.canned_run import of_a_while
from tests.servers import browser
from txtopo.page import access, server

_TOKEN = "a-token-for-a-benchmark"

_DRAW = """const done = arguments[0];
draw(Object.keys(view));
requestAnimationFrame(() => done(Number(document.body.dataset.drawMs)));"""
"""Draws everything, and gives the script's milliseconds."""


class Drawn:
    """A contender (see :class:`bench.process.Contender`)."""

    def __init__(self, directory: str, transactions: int) -> None:
        self._transactions, self._kept = transactions, contextlib.ExitStack()
        self._run = of_a_while(Path(directory), transactions)
        self._kept.callback(self._run.end)
        listening = access.listen("0", is_open_allowed=False)
        self._kept.callback(server.Page(self._run.path, listening, _TOKEN).close)
        self._chrome = self._kept.enter_context(browser.browser())
        browser.show(self._chrome, 1600)
        self._chrome.get(f"http://{listening.host}:{listening.place[1]}/?token={_TOKEN}")
        browser.wait_for(self._chrome, f"[data-key='{transactions}:0'] .commit")
        self._chrome.execute_script(f"document.getElementById('many').value = '{transactions}'")

    def block(self) -> dict[str, float]:
        """The seconds of script that drawing the page takes."""
        drawn_ms = self._chrome.execute_async_script(_DRAW)
        lanes = self._chrome.execute_script("return new Set(attempts.map((one) => one.txid)).size")
        check(lanes, self._transactions)
        return {"seconds": drawn_ms / 1000}

    def close(self) -> None:
        """End the browser and the page."""
        self._kept.close()
