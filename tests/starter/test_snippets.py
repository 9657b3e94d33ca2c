"""Every Python snippet of the documentation runs, and prints the output on its page.

A page is one session: all snippets of a page share names and a directory. A block of text
after ``<!-- output -->`` is the output of the snippet before the block. ``<!-- no-run -->`` marks a
fragment that only makes sense in place. All pages share one Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from txtopo import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "docs", ROOT / "docs" / "stores")
PAGES = [
    ROOT / "README.md",
    ROOT / "starter" / "README.md",
    *(page for folder in FOLDERS for page in sorted(folder.glob("*.md"))),
]
BLOCK = re.compile(
    r"(?P<no_run><!-- no-run -->\s*)?"
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\s*<!-- output -->\s*^```text\n(?P<output>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    """One block: its place, its code, and its output (None if the page has none)."""

    page: Path
    line: int
    code: str
    output: str | None

    def run(self, names: dict[str, Any]) -> None:
        """Run it as the program ``names["__name__"]``; tracebacks name the page and the line in it."""
        code = "\n" * self.line + self.code
        exec(compile(code, str(self.page), "exec"), names)


def snippets(page: Path) -> Iterator[Snippet]:
    """The snippets of ``page`` that run, in order."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        if match["no_run"] is None:
            yield Snippet(
                page, text.count("\n", 0, match.start("code")), match["code"], match["output"]
            )


WITH_SNIPPETS = [page for page in PAGES if any(snippets(page))]
WITH_TOPOLOGIES = [
    page for page in PAGES if any("LocalCluster(" in snippet.code for snippet in snippets(page))
]


@pytest.fixture
def surroundings(
    page: Path,
    request: pytest.FixtureRequest,
    shared_cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty directory, no debugger, and a database for the page that needs one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["snippet.py"])
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    if "WORDS_URL" in page.read_text(encoding="utf-8"):
        monkeypatch.setenv("WORDS_URL", request.getfixturevalue("postgres").new_url())


def run_and_compare(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run all snippets of ``page`` as one program; each prints its output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in snippets(page):
        capsys.readouterr()
        snippet.run(names)
        if snippet.output is not None:
            assert capsys.readouterr().out == snippet.output, (
                f"{page.name}, line {snippet.line + 1}"
            )


# Without the pages on testing and on a store or a sink of your own, which play schedules and check
# contracts, and the long one on porting; getting-started is below.
@pytest.mark.in_gate(
    "README.md", "starter/*", "docs/[!gpsty]*", "docs/s[!t]*", "docs/stores.md", "docs/stores/[!y]*"
)
@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_snippets_of_a_page_run_and_print_its_outputs(
    page: Path, surroundings: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run_and_compare(page, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", WITH_TOPOLOGIES, ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_the_snippets_of_a_page_run_again_with_the_stores_of_their_first_run(
    page: Path, surroundings: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output of the second run is not compared: it may differ."""
    run_and_compare(page, capsys)
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in snippets(page):
        snippet.run(names)


def test_the_pages_that_teach_have_snippets_and_their_outputs() -> None:
    for name in ("README.md", "docs/getting-started.md", "docs/sources.md", "docs/stores.md"):
        assert any(snippet.output for snippet in snippets(ROOT / name)), name


def test_a_snippet_that_is_not_run_says_so() -> None:
    fenced = sum(page.read_text(encoding="utf-8").count("```python\n") for page in PAGES)
    not_run = sum(
        page.read_text(encoding="utf-8").count("<!-- no-run -->\n```python\n") for page in PAGES
    )
    assert fenced == not_run + sum(len(list(snippets(page))) for page in PAGES)
