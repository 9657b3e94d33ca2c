"""A browser without a window, which a test drives, and axe-core, which judges whether people with
impairments can use a page.

``python -m tests.servers.browser`` puts axe-core into ``servers/`` of this interpreter's
environment. It comes with a package of pip, since a machine without Node has no npm. The browser is
among the servers of ``fetch``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests import patience
from tests.servers import fetch

AXE = "axe-playwright-python==0.1.8"
"""The package. It needs another browser's driver, which is left out."""
_AXE_FILE = "axe_playwright_python/axe.min.js"
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


def _axe_directory() -> Path:
    return fetch.HOME / AXE.replace("==", "-")


def bring_axe() -> None:
    """Bring axe-core unless it is there.

    :raises RuntimeError: it could not be brought; says what to do.
    """
    if _axe_directory().is_dir():
        return
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    cure = "Look after what pip says, and type: make servers"
    with tempfile.TemporaryDirectory(prefix="txtopo-axe-") as scratch:
        fetch.persistently(lambda: fetch.run([*pip, "--dest", scratch, AXE], AXE, cure))
        package = next(Path(scratch).iterdir())
        with fetch.whole(_axe_directory()) as making, zipfile.ZipFile(package) as wheel:
            wheel.extract(_AXE_FILE, making)


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A browser that runs as long as the context."""
    driver = fetch.found("chromium")
    is_installed = driver.root == Path("/")
    environment = dict(os.environ) | driver.environment
    if not is_installed and (driver.root / "etc/fonts").is_dir():
        environment["FONTCONFIG_SYSROOT"] = str(driver.root)
    options = webdriver.ChromeOptions()
    options.binary_location = str(
        driver.root / ("usr/bin/chromium" if is_installed else "usr/lib/chromium/chromium")
    )
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(
        options=options, service=Service(str(driver.program), env=environment)
    )
    try:
        yield chrome
    finally:
        chrome.quit()


def show(chrome: webdriver.Chrome, width: int, height: int = 1200, scheme: str = "light") -> None:
    """Give the page a size in pixels, and a colour scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait_for(
    chrome: webdriver.Chrome, selector: str, is_met: Callable[[str], bool] = lambda text: True
) -> str:
    """Wait until an element is on the page, and its text is as it should be. Returns the text."""

    def text() -> str | None:
        # In one call, because the script may draw anew between two calls.
        script = "return document.querySelector(arguments[0])?.textContent"
        told: str | None = chrome.execute_script(script, selector)
        return told

    patience.wait_until(lambda: (told := text()) is not None and is_met(told), selector)
    return text() or ""


def console(chrome: Any) -> list[Any]:
    """The lines on the browser's console since the last call."""
    lines: list[Any] = chrome.get_log("browser")
    return lines


def violations(chrome: webdriver.Chrome) -> list[tuple[str, list[Any]]]:
    """What axe-core finds wrong with the page: each rule, with the elements."""
    try:
        axe = (_axe_directory() / _AXE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise fetch.ServerMissingError(
            "there is no axe-core to test with\n  Type: make servers"
        ) from None
    chrome.execute_script(axe)
    result = chrome.execute_async_script(
        "axe.run({runOnly: arguments[0]}).then(arguments[1])", list(_RULES)
    )
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in result["violations"]]


if __name__ == "__main__":
    sys.exit(fetch.exit_code(lambda _: bring_axe(), [AXE]))
