"""The spouts' contract: a replay has the same batch, and every tuple comes exactly once after failures
and restarts (R4, R5, R18 to R23)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txtopo import errors
from txtopo.testing.contracts import equality, spout_story, violation
from txtopo.testing.contracts.spout_story import Plot, Told
from txtopo.topology import builder
from txtopo.topology.bolt import BaseBatchBolt
from txtopo.topology.graph import TopologyGraph
from txtopo.topology.stream import Tuple

DIRECT_TASKS = 64
"""How many tasks listen to the spout's direct streams."""

_HISTORY_SHOWN = 12


@dataclass(frozen=True, slots=True)
class SpoutReport:
    """The extent of a check. Assert ``is_exhausted``: otherwise the run was cut at
    ``transactions``, and lost tuples look like tuples still to come."""

    kind: str
    """``"transactional"``, ``"committer"``, ``"partitioned"`` or ``"opaque"``."""
    is_exhausted: bool
    """Every story went on until the spout had nothing more."""
    transactions: int
    """Transactions in the run without failures."""
    tuples: int
    """Tuples committed in the run without failures."""
    partitions: int
    """How many partitions there were, 0 for a spout without."""
    attempts: int
    """Emissions over all stories."""
    restarts: int
    """Restarts over all stories."""


def check_spout(
    make_spout: Callable[[], Any],
    *,
    expected: Iterable[Sequence[Any]] | None = None,
    grow: Callable[[Any], object] | None = None,
    transactions: int = 40,
    parallelisms: Sequence[int] = (1, 2, 5),
    stories: int = 10,
    seed: int = 0,
    conf: Mapping[str, Any] | None = None,
) -> SpoutReport:
    """Run a spout of any kind through its contract, without Spark.

    The first run has no failures. A transactional spout's batches are emitted again in it, with
    each task count in ``parallelisms``. Then come ``stories`` runs in which attempts are abandoned
    and the driver restarts, at moments that ``seed`` gives. No run has more transactions than
    ``transactions``.

    - ``make_spout()``: a spout whose source is at the beginning. Called once for each run. Restarts
      and tasks get pickled copies.
    - ``expected``: the tuples in the source at the end, without the attempt, in any order. Without
      ``expected`` runs are only compared with each other, which misses a tuple that every run
      loses.
    - ``grow(spout)``: adds tuples to the source. Called twice in each run: while a batch is open,
      and when the source is exhausted.

    :raises ContractError: the first broken promise, with hook and rule.
    """
    if transactions < 1 or stories < 0 or not parallelisms or min(parallelisms) < 1:
        raise errors.UsageError(
            "check_spout: transactions and parallelisms are at least 1, stories at least 0\n  Give other numbers."
        )

    def make() -> tuple[TopologyGraph, Any]:
        user_spout = make_spout()
        getattr(user_spout, "publish_nothing", lambda: None)()
        return spout_graph(user_spout), user_spout

    return check_graph(
        make, expected, Plot(transactions, tuple(parallelisms), grow), stories, seed, conf
    )


def check_graph(
    make: Callable[[], tuple[TopologyGraph, Any]],
    expected: Iterable[Sequence[Any]] | None,
    plot: Plot,
    stories: int,
    seed: int = 0,
    conf: Mapping[str, Any] | None = None,
) -> SpoutReport:
    """Run :func:`check_spout` on a graph's spout. ``make()`` gives the graph, and the spout that
    ``plot`` may grow."""
    graph, _ = make()

    def tell(rng: random.Random | None = None, replays: bool = False) -> Told:
        graph, user_spout = make()
        return spout_story.Story(
            graph, user_spout, dataclasses.replace(plot, rng=rng, replays=replays), conf
        ).tell()

    whole = tell(replays=True)
    told = [whole]
    hook = _deciding_hook(graph)
    if expected is not None:
        truth = [tuple(values) for values in expected]
        _compare(
            hook,
            [values for _, values in whole.rows],
            truth,
            whole,
            may_lack=not whole.is_exhausted,
            against="the source",
        )
    for number in range(stories):
        story = tell(random.Random(f"{seed}/{number}"))
        told.append(story)
        if whole.is_exhausted:
            _compare_stories(hook, story, whole, tell, f"story {number} of seed {seed}")
    kind = "committer" if graph.spout.committer else graph.spout.spout_kind or ""
    return SpoutReport(
        kind,
        all(each.is_exhausted for each in told),
        len(whole.committed),
        len(whole.rows),
        whole.partitions,
        sum(each.attempts for each in told),
        sum(each.restarts for each in told),
    )


class _Sink(BaseBatchBolt):
    """Listens to direct streams: without a receiver, a spout cannot emit on them."""

    def execute(self, tup: Tuple) -> None:
        pass


def spout_graph(user_spout: Any) -> TopologyGraph:
    """A topology with only ``user_spout``.

    :raises ContractError: the spout cannot be in a topology.
    """
    try:
        build = builder.TransactionalTopologyBuilder("contract", "spout", user_spout)
        graph = build.build_topology()
        direct = [stream for stream, spec in graph.spout.outputs.items() if spec.direct]
        if direct:
            declarer = build.set_bolt("sink", _Sink(), DIRECT_TASKS)
            for stream in direct:
                declarer.direct_grouping("spout", stream)
            graph = build.build_topology()
    except errors.InvalidTopologyError as error:
        raise violation.ContractError(
            "spout",
            22,
            "; ".join(error.problems),
            "Every task gets a copy of the spout, made by pickling it.",
        ) from error
    return graph


def _deciding_hook(graph: TopologyGraph) -> str:
    """The hook that decides where a batch begins."""
    if not graph.spout_traits.is_partitioned:
        return "initialize_transaction and emit_batch"
    learning = (
        "emit_partition_batch" if graph.spout_traits.is_opaque else "emit_partition_batch_new"
    )
    return f"plan_batch, plan_partition_batch or {learning}"


def _compare_stories(
    hook: str, story: Told, whole: Told, tell: Callable[[], Told], name: str
) -> None:
    difference = equality.multiset_difference(story.rows, whole.rows)
    if difference is None:
        return
    again = tell()
    if equality.multiset_difference(again.rows, whole.rows) is not None:
        raise violation.ContractError(
            "spout",
            None,
            f"two runs without failures differ: {equality.multiset_difference(again.rows, whole.rows)}",
            "Let make_spout bring the source back to its beginning, and keep positions only in metadata (R20).",
        )
    _compare(
        hook,
        story.rows,
        whole.rows,
        story,
        may_lack=not story.is_exhausted,
        against=f"a run without failures ({name})",
    )


def _compare(
    hook: str, actual: Sequence[Any], truth: Sequence[Any], told: Told, may_lack: bool, against: str
) -> None:
    lacks_only = not equality.counted(actual) - equality.counted(truth)
    difference = equality.multiset_difference(actual, truth)
    if difference is None or (may_lack and lacks_only):
        return
    history = "\n".join(f"    {line}" for line in told.history[-_HISTORY_SHOWN:])
    raise violation.ContractError(
        "spout",
        20,
        f"{hook}: against {against}, {difference}\n  What happened last:\n{history}",
        "Begin where the metadata given to the hook ends, and keep positions nowhere else: not in the emitter, the coordinator, a global or"
        " context.resource. None keeps the position (R21). is_ready must be right also just after a restart.",
    )
