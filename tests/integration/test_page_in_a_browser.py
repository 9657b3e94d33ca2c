"""The page in a real browser, over a journal that a test makes up: what is drawn, for readers with
and without a mouse, and what happens when the server goes away."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests import patience
from tests.canned_run import SCRIPT, CannedRun, of_a_while
from tests.servers import browser, ports
from tests.servers.browser import wait_for
from txtopo.journal import live, watch
from txtopo.page import access, html, server

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with browser.browser() as chrome:
        yield chrome


@pytest.fixture
def run(tmp_path: Path) -> Iterator[CannedRun]:
    run = of_a_while(tmp_path, 12)
    yield run
    run.end()


@contextlib.contextmanager
def served(run: CannedRun, port: int = 0) -> Iterator[int]:
    listening = access.listen(str(port), is_open_allowed=False)
    with contextlib.closing(server.Page(run.path, listening, TOKEN)):
        yield listening.place[1]


@pytest.fixture
def port(run: CannedRun, chrome: Chrome) -> Iterator[int]:
    """The port of the page, which the browser shows."""
    with served(run) as port:
        browser.show(chrome, 1600)
        browser.console(chrome)  # forgets the last page's
        chrome.get(f"http://127.0.0.1:{port}/?token={TOKEN}")
        wait_for(chrome, "[data-key='12:0'] .commit")
        wait_for(chrome, "[data-key='14:0'] .processing")
        yield port
        chrome.get("about:blank")


def test_lanes_and_failures_are_shown_and_a_script_in_a_traceback_stays_text(
    chrome: Chrome, port: int
) -> None:
    assert chrome.current_url == f"http://127.0.0.1:{port}/"
    bars = [
        "[data-key='5:0'] .failed",
        "[data-key='5:1'] .processing",
        "[data-key='5:1'] .waiting",
        "[data-key='5:1'] .commit",
        "[data-key='6:0'] .behind",
    ]
    # In one call, because the script may draw anew between two calls.
    drawn = chrome.execute_script(
        """return arguments[0].map((selector) => {
             const bar = document.querySelector(selector), {x, y} = bar.getBoundingClientRect();
             return [getComputedStyle(bar).fill, x, y];
           });""",
        bars,
    )
    assert [fill for fill, _, _ in drawn] == [
        "rgb(209, 36, 47)",
        "rgb(47, 111, 235)",
        "rgb(140, 149, 159)",
        "rgb(42, 157, 74)",
        "rgb(154, 103, 0)",
    ]
    lane = drawn[:4]
    assert [x for _, x, _ in lane] == sorted(x for _, x, _ in lane)
    assert len({y for _, _, y in lane}) == 1

    assert SCRIPT in chrome.find_element(By.CSS_SELECTOR, "#failures pre").text
    assert chrome.find_elements(By.CSS_SELECTOR, "#failures script, #failures img") == []
    assert chrome.title == "words: running"
    assert browser.console(chrome) == []


def has(part: str) -> Callable[[str], bool]:
    return lambda text: part in text


def test_the_plan_the_tables_and_the_facts_are_drawn(chrome: Chrome, port: int) -> None:
    edges = "lines to split, lines to longest, split to count-of-split, count-of-split and longest to count"
    plan = chrome.find_element(By.CSS_SELECTOR, "#plan svg")
    assert plan.get_attribute("aria-label") == f"Plan: lines, {edges}"
    for selector, text in (
        ("#plan", "countcommitter × 2, skew 1.428,800 in, 0 out"),
        ("#plan", "/s, 10.0 µs/tuple"),
        ("#components", "count-of-splitbolt224,00024,000"),
        ("#sources", "orders/01,200–"),
        ("#stores", "count/totals12:00"),
        ("#facts", "connected, 0 outages"),
        ("#facts", "standbys0"),
        ("#facts", "28807 on alpha"),
        ("#settings", "max_spout_pending3"),
        ("#numbers", "newest commit"),
        ("#numbers", "tuples/s813"),
    ):
        wait_for(chrome, selector, has(text))


def test_the_page_is_used_by_keyboard(chrome: Chrome, port: int) -> None:
    lanes = chrome.find_element(By.ID, "lanes")
    lanes.send_keys(Keys.ARROW_UP)
    assert "14:0 in flight" in wait_for(chrome, "#detail")
    lanes.send_keys(Keys.ARROW_UP, Keys.ARROW_UP)
    told = wait_for(chrome, "#detail", lambda text: "12:0" in text)
    assert "12:0 committed, from" in told
    assert "processing 1.000 s, processed 0.400 s, sealing 0.050 s" in told
    assert "1.750 s in all, 400 tuples" in told

    chrome.execute_script("location.hash = '#5:0'")
    wait_for(chrome, "[id='5:0'][open] summary:focus", lambda text: "committed by 5:1" in text)
    field = chrome.find_element(By.ID, "filter")
    field.send_keys("no such text")
    wait_for(chrome, "#shown", lambda text: text == "0 of 1")
    field.clear()
    field.send_keys('File "words.py", line 16')
    wait_for(chrome, "#shown", lambda text: text == "1 of 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_for_narrow_and_wide_windows_and_passes_axe(
    chrome: Chrome, port: int, scheme: str
) -> None:
    for width in (360, 1600):
        browser.show(chrome, width, scheme=scheme)
        wait_for(chrome, "#lanes svg")
        overflow = chrome.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow == 0, width
        assert browser.violations(chrome) == [], width
    assert browser.console(chrome) == []


@contextlib.contextmanager
def rogue(port: int) -> Iterator[list[str]]:
    """Another user's server at the port, whose answers a browser may keep. Gives the requests."""
    asked: list[str] = []

    class Rogue(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("txtopo-challenge", "of-a-rogue")
            self.send_header("cache-control", "max-age=3600")
            self.send_header("content-length", "0")
            self.end_headers()
            asked.append(f"{self.command} {self.path.partition('=')[0]}")

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Rogue) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield asked
        serving.shutdown()
        thread.join()


def test_the_page_follows_the_run_says_that_the_server_is_gone_and_comes_back(
    chrome: Chrome, run: CannedRun
) -> None:
    port = ports.free_port()
    with served(run, port):
        chrome.get(f"http://127.0.0.1:{port}/?token={TOKEN}")
        wait_for(chrome, "[data-key='12:0'] .commit")
        run.attempt(13)
        wait_for(chrome, "[data-key='13:0'] .commit")
        wait_for(chrome, "#connection", lambda text: text == "")
    wait_for(chrome, "#connection", lambda text: "No answer from the server since" in text)
    with rogue(port) as asked:
        patience.wait_until(lambda: {"GET /api/v1/view", "HEAD /?token"} <= {*asked})
    run.fail(14)
    run.wait_until_written(14)
    with served(run, port):
        wait_for(chrome, "[data-key='14:0'] .failed")
        chrome.execute_script("document.getElementById('14:0').open = true")
        run.attempt(14, 1)
        wait_for(chrome, "[id='14:0'][open] summary", lambda text: "committed by 14:1" in text)
        wait_for(chrome, "#connection", lambda text: text == "")
        run.end(ValueError("over"))
        wait_for(chrome, "#state", lambda text: "ended with exit code 1" in text)
        assert wait_for(chrome, "#error") == "over"
    chrome.get("about:blank")


def test_a_silent_run_and_a_dead_run_are_not_shown_as_running(
    chrome: Chrome, run: CannedRun, tmp_path: Path
) -> None:
    """So does ``txtopo top``. The journal of a silent run may have ended."""
    patience.wait_until(lambda: (live.read(run.path) or {}).get("active"))
    watching = watch.Watch(run.path)
    watching.refresh()
    view, file = watching.view(), tmp_path / "words.html"

    def show() -> str:
        file.write_text(html.whole(view), encoding="utf-8")
        chrome.get(file.as_uri())
        wait_for(chrome, "#numbers dd")
        return wait_for(chrome, "#state")

    assert show().startswith("running")
    assert "tuples/s813" in wait_for(chrome, "#numbers")
    silent_since = datetime.datetime.fromisoformat(view["at"]) - datetime.timedelta(seconds=60)
    view["live"]["at"] = silent_since.isoformat()
    assert show().startswith("silent for 60.0 s")
    assert "in flight2" in wait_for(chrome, "#numbers")
    view["run"]["is_alive"] = False
    view["live"]["status"]["fraction_done"] = 0.9999
    assert show().startswith("does not run any more")
    numbers = wait_for(chrome, "#numbers")
    assert "not finished2" in numbers
    assert "tuples/s–" in numbers
    assert "of the source99.9 %" in numbers  # 100 % means all


def test_the_page_in_one_file_needs_no_server(
    chrome: Chrome, run: CannedRun, tmp_path: Path
) -> None:
    watching = watch.Watch(run.path)
    watching.refresh()
    file = tmp_path / "words.html"
    file.write_text(html.whole(watching.view()), encoding="utf-8")
    browser.console(chrome)
    chrome.get(f"{file.as_uri()}#5:0")
    wait_for(chrome, "[data-key='5:0'] .failed")
    wait_for(chrome, "[id='5:0'][open] pre", lambda text: SCRIPT in text)
    assert browser.console(chrome) == []
