"""The report of the benchmark: the kept results of a run, and the page made from them."""

from __future__ import annotations

import re

import pytest

from bench import __main__ as command
from bench import catalogue, plots, report, results
from bench.line import Figure, Measured
from bench.race import Ratio
from bench.results import LineResult, Results

MACHINE = {
    "date": "2026-01-31",
    "cores": 2,
    "processor": "A processor",
    "memory_gib": 23.5,
    "system": "Linux 6",
    "load_before": 0.1,
    "versions": {"Python": "3.11.2", "pyspark": "4.1.0"},
}
FAST = Measured(
    (
        Ratio("txtopo : peer", 4.25, 4.0, 4.5, "higher", 4.0),
        Ratio("txtopo : floor", 3.0, 2.9, 3.1, "lower", 2.5),
        Ratio("other", 1.5, 1, 2, "lower"),
    ),
    (Figure("txtopo", 1_234_567.0, "tuples/s"), Figure("peer", 23.456, "ms")),
    {"txtopo": "defaults"},
    {"txtopo": [[1.0, 2.0]]},
)
FOUND = Results(
    MACHINE,
    (
        LineResult("line.fast", "Fast?", 12.3, FAST),
        LineResult("line.broken", "?", 1.0, error="Traceback …\nValueError: no"),
    ),
)


def test_results_survive_being_written_down() -> None:
    assert results.loads(results.dumps(FOUND)) == Results(
        MACHINE, (LineResult("line.fast", "Fast?", 12.3, rounded()), FOUND.lines[1])
    )


def rounded() -> Measured:
    return Measured(
        FAST.ratios,
        (Figure("txtopo", 1_235_000.0, "tuples/s"), Figure("peer", 23.46, "ms")),
        FAST.settings,
        FAST.series,
    )


def test_fresh_lines_take_the_place_of_older_ones() -> None:
    fresh = LineResult("line.broken", "?", 2.0)
    assert FOUND.with_lines((fresh,)).lines == (FOUND.lines[0], fresh)


def test_a_page_gets_the_measurements_and_keeps_its_prose() -> None:
    page = "\n".join(
        [
            "Prose.",
            *(
                f"<!-- measured {name} -->\nold\n<!-- end measured -->"
                for name in ("line.fast", "machine", "gone")
            ),
            "More.",
        ]
    )
    fresh = report.refreshed(page, FOUND)
    assert fresh.startswith("Prose.\n")
    assert fresh.endswith("\nMore.")
    assert "old" not in fresh
    assert "| txtopo : peer | **4.25** | 4.00 to 4.50 | ≥ 4 | reached |" in fresh
    assert "| txtopo : floor | **3.00** | 2.90 to 3.10 | ≤ 2.5 | missed |" in fresh
    assert "| txtopo | 1,234,567 tuples/s |" in fresh
    assert "- txtopo: defaults" in fresh
    assert "Measured on 2026-01-31: 2 cores (A processor)" in fresh
    assert "<!-- measured gone -->\nNot measured yet." in fresh
    assert report.refreshed(fresh, FOUND) == fresh


def test_a_line_measured_in_the_reduced_form_says_so() -> None:
    assert "reduced form" in report.one(LineResult("line.fast", "Fast?", 1.0, FAST, is_quick=True))
    assert "reduced form" not in report.one(FOUND.lines[0])


def test_the_overview_has_every_ratio_with_a_target_and_every_line_that_failed() -> None:
    rows = report.overview(FOUND).splitlines()[2:]
    assert rows == [
        "| `line.fast` | txtopo : peer | 4.25 | ≥ 4 | reached |",
        "| `line.fast` | txtopo : floor | 3.00 | ≤ 2.5 | missed |",
        "| `line.broken` | | failed | | |",
    ]
    assert "ValueError: no" in report.one(FOUND.lines[1])


def test_a_quick_run_tells_ratios_and_no_absolute_figures() -> None:
    assert "tuples/s" in report.told(FOUND.lines[0])
    assert "tuples/s" not in report.told(FOUND.lines[0], with_figures=False)
    assert "4.25" in report.told(FOUND.lines[0], with_figures=False)


# -- what is committed ---------------------------------------------------------------------------


def test_the_page_shows_the_committed_results() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    committed = results.loads(results.LATEST.read_text(encoding="utf-8"))
    assert report.refreshed(page, committed) == page, "type `.venv/bin/python -m bench report`"


def test_the_page_shows_every_line_and_every_plot() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert set(report.shown_in(page)) == {
        "overview",
        "machine",
        *(line.id for line in catalogue.LINES),
    }
    drawn = {"bench-overview.svg", *(f"bench-{id.replace('.', '-')}.svg" for id in plots.LINES)}
    assert set(re.findall(r"\]\(images/([\w-]+\.svg)\)", page)) == drawn
    assert {path.name for path in report.IMAGES.glob("bench-*.svg")} == drawn


def test_every_line_has_a_name_of_its_own_and_a_question() -> None:
    ids = [line.id for line in catalogue.LINES]
    assert len(ids) == len(set(ids))
    assert all(line.asks.endswith("?") for line in catalogue.LINES)


# -- the command ---------------------------------------------------------------------------------


def test_list_names_the_lines_that_only_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--only", "txn"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [line.id for line in catalogue.LINES if line.id.startswith("txn")]


def test_a_line_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "--list" in capsys.readouterr().err
