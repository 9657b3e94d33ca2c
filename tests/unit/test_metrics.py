"""Metrics for Prometheus: prometheus-client reads them, series stay few, and the documentation, the
alerts and the dashboard name no other metric."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from tests.unit.test_journal import AT
from tests.unit.test_watch import Run, ended, failure
from txtopo import SetupError
from txtopo.coordinator.transitions import Status
from txtopo.engine.spout_hooks import SourceProgress
from txtopo.engine.status import StatusBoard
from txtopo.journal import watch
from txtopo.page import metrics

ROOT = Path(__file__).resolve().parents[2]
NOW_S = AT


class Words:
    """A run of the topology ``words``, through its status board and its ``live.json``."""

    def __init__(self, path: Path) -> None:
        self.run = Run(path)
        self.board = StatusBoard(self.run.moment.status, lambda: 0.0)
        self.board.began("first", 3, 1, False)

    def fail(self, txid: int, n: int) -> None:
        self._end(ended(txid, n, "failed", failure=failure("ValueError: x")))
        self._end(ended(txid + 1, n, "behind"))

    def commit(self, txid: int, n: int = 0, **more: Any) -> None:
        steps = [(status.value, 0.02) for status in Status][:-2]
        facts: dict[str, Any] = {
            "latency_s": 0.3,
            "steps": tuple(steps),
            "tuples": 4,
            "tasks": {"lines": 1, "split": 2, "count": 2},
            "executed": {"lines": 0, "split": 4, "count": 12},
            "emitted": {"lines": 4, "split": 12, "count": 0},
            "widest": {"split": (9 + txid % 3, txid % 2)},
            "stores": {"count/counts/by word": 2},
            "counters": {"split": {"late_rows": 2}},
        }
        self._end(ended(txid, n, **{**facts, **more}))
        self.board.in_flight(txid + 1, [(txid + 1, n, "processing")], False)

    def _end(self, attempt: Any) -> None:
        if attempt.outcome == "committed":
            self.board.committed(attempt)
        else:
            self.board.attempt_ended(attempt)
        self.run.live.add(attempt, "2026-11-28T04:00:00.000Z")

    def live(self, **changes: Any) -> Any:
        """``live.json`` now, as at ``NOW_S``."""
        self.board.update(**changes)
        self.run.moment = dataclasses.replace(self.run.moment, status=self.board.snapshot())
        return {**self.run.write(is_last=True), "at": "2026-09-21T14:13:15Z"}


def samples(live: Any) -> dict[tuple[str, ...], float]:
    """The samples as prometheus-client parses them: name and labels, without ``topology``."""
    parsed: dict[tuple[str, ...], float] = {}
    for family in parser.text_string_to_metric_families(metrics.metrics(live, NOW_S)):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("topology") == "words"
            parsed[sample.name.removeprefix("txtopo_"), *labels.values()] = sample.value
    return parsed


def test_prometheus_reads_what_a_run_has_done(tmp_path: Path) -> None:
    words = Words(tmp_path)
    words.fail(1, 0)
    words.fail(1, 1)
    words.commit(1, 2)
    words.commit(2, 2, counters={"split": {"late_rows": 5}, "count": {"other": 1}})
    words.board.answered(3, SourceProgress(lag={"orders/0": 40, "orders/1": 2}))
    active = ((3, 2_000_006, "processing"), (4, 2_000_000, "processed"))
    shown = samples(words.live(active=active, idle=False))
    expected = {
        ("transactions_committed_total",): 2,
        ("tuples_committed_total",): 8,
        ("attempts_failed_total", "split", "failed"): 2,
        ("attempts_discarded_total",): 2,
        ("transaction_latency_seconds_bucket", "0.25"): 0,
        ("transaction_latency_seconds_bucket", "0.5"): 2,
        ("transaction_latency_seconds_bucket", "+Inf"): 2,
        ("transaction_latency_seconds_sum",): 0.6,
        ("transaction_latency_seconds_count",): 2,
        ("phase_duration_seconds_count", "process"): 2,
        ("phase_duration_seconds_count", "wait"): 4,
        ("phase_duration_seconds_bucket", "0.025", "wait"): 4,
        ("zookeeper_write_duration_seconds_count",): 4,
        ("zookeeper_write_duration_seconds_bucket", "+Inf"): 4,
        ("component_tuples_total", "split", "emitted"): 24,
        ("component_tuples_total", "count", "executed"): 24,
        ("component_skew_ratio", "split"): 1.833,
        ("transactions_in_flight", "processing"): 1,
        ("transactions_in_flight", "processed"): 1,
        ("transactions_in_flight", "sealing"): 0,
        ("committed_txid",): 2,
        ("last_commit_timestamp_seconds",): 1_795_838_400,
        ("transaction_attempts",): 7,
        ("store_recorded_txid", "count", "counts/by word"): 2,
        ("zookeeper_connected",): 1,
        ("zookeeper_outages_total",): 0,
        ("spout_ready",): 1,
        ("source_lag",): 42,
        ("info", "1", "1a805c2a", "4.3.0", "0.1.0"): 1,
        ("user_total", "split", "late_rows"): 7,
        ("user_total", "count", "other"): 1,
    }
    assert {key: shown.get(key) for key in expected} == expected
    names = {key[0] for key in shown}
    for metric in metrics.METRICS:
        ends = ("_bucket", "_count", "_sum") if metric.type == "histogram" else ("",)
        for end in ends:
            assert metric.name.removeprefix("txtopo_") + end in names
    assert len(words.live()["totals"]["steps_s"]) == len(metrics.PHASES) == len(Status) - 2


@pytest.mark.parametrize(
    ("changes", "is_ready"),
    [({"idle": True}, 0), ({"state": "paused"}, 0), ({"state": "draining"}, 0), ({}, 1)],
)
def test_a_run_with_nothing_to_do_is_not_ready(
    tmp_path: Path, changes: dict[str, Any], is_ready: int
) -> None:
    shown = samples(Words(tmp_path).live(**changes))
    assert shown["spout_ready",] == is_ready
    assert shown["transaction_attempts",] == 0
    assert ("last_commit_timestamp_seconds",) not in shown
    assert ("source_lag",) not in shown


def test_attempts_at_the_oldest_transaction_count_in_the_pause_before_a_replay(
    tmp_path: Path,
) -> None:
    words = Words(tmp_path)
    for n in range(6):
        words.fail(1, n)
    assert samples(words.live(active=()))["transaction_attempts",] == 6
    words.commit(1, 6)
    assert samples(words.live(active=()))["transaction_attempts",] == 6, "discarded attempts count"
    words.commit(2, 6)
    assert samples(words.live(active=()))["transaction_attempts",] == 0


def test_series_do_not_grow_with_transactions(tmp_path: Path) -> None:
    words = Words(tmp_path)
    words.commit(1)
    few = set(samples(words.live()))
    for txid in range(2, 5_002):
        words.commit(txid)
    assert set(samples(words.live())) == few
    assert len(few) < 200


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_run_that_has_ended_or_is_silent_has_no_metrics(tmp_path: Path, state: Any) -> None:
    """So an alert on an absent metric goes off."""
    words = Words(tmp_path)
    assert metrics.metrics(words.live(), NOW_S) != ""
    assert metrics.metrics(words.live(), NOW_S + watch.SILENCE_S) == ""
    assert metrics.metrics(words.live(state=state), NOW_S) == ""
    assert metrics.metrics(None, NOW_S) == ""


def test_names_in_any_script_are_labels(tmp_path: Path) -> None:
    words = Words(tmp_path)
    words.commit(1, stores={'count/"é"\\\n': 1, "count/\udc80": 1})
    labels = {key[2] for key in samples(words.live()) if key[0] == "store_recorded_txid"}
    assert labels == {'"é"\\\n', "\\udc80"}


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(SetupError, match=r"pip install 'txtopo\[metrics\]'"):
        metrics.metrics(None)


def named_metrics(path: Path) -> set[str]:
    """The metrics that the file names."""
    names = re.findall(r"txtopo_[a-z_]+", path.read_text(encoding="utf-8"))
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


@pytest.mark.parametrize(
    "path",
    ["docs/alerts.yml", "docs/alerts.md", "docs/grafana.json", "tests/integration/alerts.yml"],
)
def test_no_metric_is_named_that_does_not_exist(path: str) -> None:
    named = named_metrics(ROOT / path)
    assert named
    assert named <= {metric.name for metric in metrics.METRICS}


def test_each_alert_is_explained_and_has_a_case_for_promtool() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "docs/alerts.yml").read_text())
    cases = (ROOT / "tests/integration/alerts.yml").read_text()
    page = (ROOT / "docs/alerts.md").read_text()
    assert len(alerts) == 7
    assert set(re.findall(r"alertname: (\w+)", cases)) == set(alerts)
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == alerts


def test_the_dashboard_is_json_with_queries() -> None:
    panels = json.loads((ROOT / "docs/grafana.json").read_text())["panels"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
