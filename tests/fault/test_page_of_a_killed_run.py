"""The page of a real run, in a real browser, while the driver hangs, dies and is started again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.processes.watched import driver
from tests.servers import browser, ports
from tests.servers.browser import wait_for


@pytest.mark.thorough
def test_the_page_says_that_its_driver_is_gone_and_follows_the_next_run(tmp_path: Path) -> None:
    port = ports.free_port()
    with browser.browser() as chrome:
        with driver(tmp_path, port) as running:
            chrome.get(running.address())
            wait_for(chrome, "[data-key='1:0'] .commit")
            wait_for(chrome, "[data-key='7:0'] .failed")
            wait_for(chrome, "#failures pre", lambda text: "cannot parse 'the <b>bird" in text)
            wait_for(chrome, "[data-key^='8:'] .behind")
            wait_for(chrome, "[data-key='7:2'] .commit")
            assert browser.console(chrome) == []
            assert browser.violations(chrome) == []
            running.process.send_signal(signal.SIGSTOP)
            _wait_for_silence(chrome, "hangs")
            running.process.send_signal(signal.SIGCONT)
            wait_for(chrome, "#connection", lambda text: text == "")
            running.end(signal.SIGKILL)
            _wait_for_silence(chrome, "was killed")
        with driver(tmp_path, port) as running:
            wait_for(chrome, "#connection", lambda text: text == "")
            wait_for(chrome, "#state", lambda text: text.startswith("running"))
            wait_for(chrome, "#facts", lambda text: "epoch2" in text)
            wait_for(chrome, "#numbers dd", lambda text: text not in ("–", "0"))
            assert running.end(signal.SIGTERM) == 0
            wait_for(chrome, "#state", lambda text: text.startswith("ended with exit code 0"))


def _wait_for_silence(chrome: Chrome, event: str) -> None:
    begin = time.monotonic()
    wait_for(chrome, "#connection", lambda text: "No answer" in text)
    print(f"said {time.monotonic() - begin:.1f} s after the driver {event}")
