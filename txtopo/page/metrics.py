"""The metrics of a run, for Prometheus, from the run's ``live.json``.

Invariants: no label has a txid, attempt, task or partition, so a topology's series stay the same
while its transactions go by. A run that has ended, or is silent, has no metrics.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from txtopo import errors
from txtopo.journal import watch
from txtopo.journal.records import Record
from txtopo.topology import transaction

PHASES = {
    "emitting": "emit",
    "waiting": "wait",
    "processing": "process",
    "processed": "wait",
    "sealing": "seal",
    "applying": "apply",
    "recording": "record",
}
"""The label ``phase`` for each status of an attempt in flight."""

_INFO = ("txtopo", "spark", "epoch", "plan")

Samples = Iterable[tuple[Sequence[str], Any]]
"""Values of labels, and the value: a number, or a histogram as in ``live.json``."""


class Metric(NamedTuple):
    """A metric's type, name, labels besides ``topology``, and meaning."""

    type: str
    name: str
    labels: tuple[str, ...]
    meaning: str


_LINES = (
    "counter txtopo_transactions_committed_total: committed transactions",
    "counter txtopo_tuples_committed_total: the spout's tuples in committed transactions",
    "counter txtopo_attempts_failed_total kind,component: failed attempts. kind: failed, timeout, crash or fatal. component: if its code failed",
    "counter txtopo_attempts_discarded_total: attempts discarded because an earlier transaction's attempt failed",
    "histogram txtopo_transaction_latency_seconds: from the beginning of a committed attempt to its commit",
    "histogram txtopo_phase_duration_seconds phase: how long committed attempts were in a phase: emit, wait, process, seal, apply or record",
    "counter txtopo_component_tuples_total component,direction: tuples of committed attempts. direction: executed or emitted",
    "gauge txtopo_component_skew_ratio component: the busiest task's tuples, divided by the mean, in the newest attempt with several tasks",
    "gauge txtopo_transactions_in_flight status: transactions in flight, by the status of their attempt",
    "gauge txtopo_committed_txid: the last committed txid, or 0",
    "gauge txtopo_last_commit_timestamp_seconds: when this run last committed. Absent before its first commit",
    "gauge txtopo_transaction_attempts: this run's attempts at the oldest open transaction",
    "gauge txtopo_store_recorded_txid component,store: the last transaction in which the component committed to the store",
    "gauge txtopo_zookeeper_connected: 1 if ZooKeeper is connected, else 0",
    "histogram txtopo_zookeeper_write_duration_seconds: how long the writes for committed attempts took, seals and records",
    "counter txtopo_zookeeper_outages_total: how often the connection to ZooKeeper was lost",
    "gauge txtopo_spout_ready: 1 if transactions are in flight or may begin. 0 if the run is idle, paused or about to end",
    "gauge txtopo_source_lag: how much input is not committed, in the spout's unit. Absent if the spout does not tell",
    "gauge txtopo_info version,spark,epoch,plan: 1 while the run is alive. epoch counts the runs, plan changes with the components",
    "counter txtopo_user_total component,name: counts by context.count in committed attempts",
)


def _metric(line: str) -> Metric:
    head, _, meaning = line.partition(": ")
    type, name, *labels = head.replace(",", " ").split()
    return Metric(type, name, tuple(labels), meaning)


METRICS = tuple(map(_metric, _LINES))


def metrics(live: Record | None, now_s: float | None = None) -> str:
    """The metrics in ``live``, the content of a ``live.json``, in Prometheus' text format. Empty
    without a run that is alive at ``now_s``, in seconds since 1970 (default: now).

    :raises SetupError: prometheus-client is not installed.
    """
    try:
        exposition = importlib.import_module("prometheus_client.exposition")
    except ImportError as error:
        raise errors.SetupError(
            f"metrics need a library that cannot be imported: {error}\n  Type: pip install 'txtopo[metrics]'"
        ) from error
    if live is None or not _is_alive(live, time.time() if now_s is None else now_s):
        return ""
    text: str = exposition.generate_latest(_Collector(live)).decode()
    return text


class _Collector:
    """Gives prometheus-client a family of samples for each metric."""

    def __init__(self, live: Record) -> None:
        self._live = live

    def collect(self) -> Iterator[Any]:
        core = importlib.import_module("prometheus_client.metrics_core")
        samples = _samples(self._live)
        for metric in METRICS:
            kind = getattr(core, f"{metric.type.title()}MetricFamily")
            family = kind(metric.name, metric.meaning, labels=("topology", *metric.labels))
            for labels, value in samples[metric.name]:
                # A lone surrogate has no form in UTF-8.
                texts = (self._live["topology_id"], *labels)
                values = [each.encode(errors="backslashreplace").decode() for each in texts]
                if metric.type == "histogram":
                    bounds = [(str(bound), count) for bound, count in value["buckets"]]
                    family.add_metric(values, [*bounds, ("+Inf", value["count"])], value["sum"])
                else:
                    family.add_metric(values, value)
            yield family


def _samples(live: Record) -> dict[str, Samples]:
    status, totals, zookeeper = live["status"], live["totals"], live["zookeeper"]
    components, at, lag = totals["components"], status["last_commit_at"], status["lag"]
    phases = _phases(totals)
    writes = [phases[each] for each in ("seal", "record") if each in phases]
    newest = [[*attempt["steps"]][-1] for attempt in live["active"] if attempt["steps"]]
    is_ready = status["state"] == "running" and not status["idle"]
    plain = {
        "transactions_committed_total": totals["committed"],
        "tuples_committed_total": totals["tuples"],
        "attempts_discarded_total": totals["behind"],
        "transaction_latency_seconds": totals["latency_s"],
        "committed_txid": status["current"] - 1,
        "last_commit_timestamp_seconds": None if at is None else watch.seconds(at),
        "transaction_attempts": _tries(live),
        "zookeeper_connected": not zookeeper["is_away"],
        "zookeeper_write_duration_seconds": _sum(writes) if writes else None,
        "zookeeper_outages_total": zookeeper["outages"],
        "spout_ready": is_ready,
        "source_lag": sum(lag.values()) if lag else None,
    }
    labelled: dict[str, Samples] = {
        "attempts_failed_total": [((kind, id), n) for kind, id, n in totals["failed"]],
        "phase_duration_seconds": [((phase,), each) for phase, each in phases.items()],
        "component_tuples_total": [
            ((id, way), each[way])
            for id, each in components.items()
            for way in ("executed", "emitted")
        ],
        "component_skew_ratio": [
            ((id,), each["skew"]) for id, each in components.items() if "skew" in each
        ],
        "transactions_in_flight": [((each,), newest.count(each)) for each in PHASES],
        "store_recorded_txid": [
            (name.split("/", 1), int(attempt.partition(":")[0]))
            for name, attempt in totals["stores"].items()
        ],
        "info": [([str(live.get(name)) for name in _INFO], 1)],
        "user_total": [
            ((id, name), n) for id, sums in totals["user"].items() for name, n in sums.items()
        ],
    }
    labelled |= {name: [] if value is None else [((), value)] for name, value in plain.items()}
    return {f"txtopo_{name}": samples for name, samples in labelled.items()}


def _phases(totals: Record) -> dict[str, Record]:
    """Histograms by phase. Two statuses are one phase."""
    of_phase: dict[str, list[Record]] = {}
    for status, each in totals["steps_s"].items():
        if status in PHASES:
            of_phase.setdefault(PHASES[status], []).append(each)
    return {phase: _sum(parts) for phase, parts in of_phase.items()}


def _sum(parts: Sequence[Record]) -> Record:
    """Add up histograms with the same bounds."""
    columns = zip(*(part["buckets"] for part in parts), strict=True)
    buckets = [[column[0][0], sum(count for _, count in column)] for column in columns]
    return {name: sum(part[name] for part in parts) for name in ("sum", "count")} | {
        "buckets": buckets
    }


def _tries(live: Record) -> int:
    """How often this run has tried the oldest open transaction."""
    current = live["status"]["current"]
    ids = (each["attempt"] for each in live["active"] if each["txid"] == current)
    return max(
        (transaction.try_of(transaction.TransactionAttempt(current, id)) + 1 for id in ids),
        default=live.get("tried", 0),
    )


def _is_alive(live: Record, now_s: float) -> bool:
    is_over = live["status"]["state"] in ("stopped", "failed")
    return not is_over and now_s - watch.seconds(live["at"]) < watch.SILENCE_S
