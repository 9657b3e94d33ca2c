"""txtopo's small transactions, while a browser shows the run's page and a program scrapes its
metrics."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

from bench.contenders import txtopo_runs
from bench.line import WrongResultError
from tests.servers import browser
from txtopo import Config
from txtopo.journal import recording
from txtopo.page import access, server

SCRAPE_S = 1.0
_TOKEN = "a-token-for-a-benchmark"


class Watched(txtopo_runs.Rate):
    """The same browser is there for every block, and shows an empty page for runs that have no
    journal."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._browsers = contextlib.ExitStack()
        self._chrome = self._browsers.enter_context(browser.browser())

    def timed(self, topology: Any, conf: Config, *args: Any) -> dict[str, Any]:
        """As its base class, watched if the run has a journal."""
        if conf.journal == "off":
            self._chrome.get("about:blank")
            return super().timed(topology, conf, *args)
        with self._watched(topology.id):
            return super().timed(topology, conf, *args)

    @contextlib.contextmanager
    def _watched(self, id: str) -> Iterator[None]:
        listening = access.listen("0", is_open_allowed=False)
        address = f"http://{listening.host}:{listening.place[1]}/"
        scrape = urllib.request.Request(
            f"{address}metrics", headers={"authorization": f"Bearer {_TOKEN}"}
        )
        is_over, scraped = threading.Event(), []

        def scrape_until_over() -> None:
            while not is_over.wait(SCRAPE_S):
                with urllib.request.urlopen(scrape, timeout=10) as answer:
                    scraped.append(b"txtopo_committed_txid" in answer.read())

        path = recording.place(self.directory / "zookeeper", id)
        with contextlib.closing(server.Page(path, listening, _TOKEN)):
            self._chrome.get(f"{address}?token={_TOKEN}")
            scraper = threading.Thread(target=scrape_until_over, daemon=True)
            scraper.start()
            yield
            is_over.set()
            scraper.join()
            browser.wait_for(self._chrome, "#title", lambda title: id in title)
        if not any(scraped):
            raise WrongResultError(f"the metrics of {id} were not there in {len(scraped)} answers")

    def close(self) -> None:
        """End the browser and the cluster."""
        self._browsers.close()
        super().close()
