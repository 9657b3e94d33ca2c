"""Any exception of user code becomes data: component, task, attempt, hook and the user's own
traceback; no code can undo the failure."""

from __future__ import annotations

import base64
import linecache
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.topologies.recording import (
    FIRST,
    InProcessTopology,
    NotingBasicBolt,
    NotingBolt,
    NotingCommitter,
    Ran,
    RowsSpout,
    builder,
    pass_on,
    planned,
    rows,
    run_once,
)
from txtopo import (
    BasicOutputCollector,
    ConfigError,
    FailedException,
    StaleAttemptError,
    StoreConflictError,
    TransactionAttempt,
    Tuple,
    TxtopoError,
    UserCodeError,
)
from txtopo.dataplane import outcome
from txtopo.dataplane.outcome import Failure, FailureInTaskError
from txtopo.dataplane.slot import SlotRun
from txtopo.stores import conflicts
from txtopo.topology import pickling

pytestmark = pytest.mark.rule(7)


class ExplosiveError(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no message either")

    __repr__ = __str__


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("carries a lock")
        self.generator = (i for i in range(3))


class UnloadableError(UserCodeError):
    """A user's subclass of an error of ours that pickles and does not come back."""

    def __init__(self, only: str) -> None:
        super().__init__("a", 0, "1:0", "commit", "execute", only, "")
        self.args = (only,) * 9


class LocalError(TxtopoError):
    """A user's subclass of an error of ours that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def raising(error: Callable[[], BaseException]) -> Callable[..., None]:
    def hook(*ignored: Any) -> None:
        raise error()

    return hook


def recursing(*ignored: Any) -> None:
    recursing(*ignored)


def exiting(*ignored: Any) -> None:
    sys.exit(3)


ERRORS: list[tuple[str, Callable[..., None], str]] = [
    ("ordinary", raising(lambda: ValueError("mine")), "ValueError: mine"),
    ("without message", raising(KeyError), "KeyError"),
    ("SystemExit", exiting, "SystemExit: 3"),
    ("KeyboardInterrupt", raising(KeyboardInterrupt), "KeyboardInterrupt"),
    ("GeneratorExit", raising(GeneratorExit), "GeneratorExit"),
    ("StopIteration", raising(StopIteration), "StopIteration"),
    ("MemoryError", raising(MemoryError), "MemoryError"),
    ("RecursionError", recursing, "RecursionError: maximum recursion depth exceeded"),
    (
        "explosive",
        raising(ExplosiveError),
        "tests.unit.test_task_failures.ExplosiveError: (its message cannot be shown)",
    ),
    (
        "unpicklable",
        raising(UnpicklableError),
        "tests.unit.test_task_failures.UnpicklableError: carries a lock",
    ),
    (
        "of ours, unloadable",
        raising(lambda: UnloadableError("mine")),
        "tests.unit.test_task_failures.UnloadableError: mine",
    ),
    (
        "of ours, unpicklable",
        raising(lambda: LocalError("mine")),
        "tests.unit.test_task_failures.LocalError: mine",
    ),
    (
        "a group",
        raising(lambda: ExceptionGroup("several", [ValueError("a")])),
        "ExceptionGroup: several (1 sub-exception)",
    ),
]


def failure_of(ran: Ran) -> Failure:
    assert ran.failure is not None
    assert all(frames == [] for part, frames in ran.frames.items() if part == ran.failed_in), (
        "nothing of a failed job is of use"
    )
    return ran.failure


def in_processing(hook: str, action: Callable[..., None], cores: int) -> Failure:
    """``action`` happens in ``hook`` of task 1 of a bolt, in the middle of a chain."""
    declared = builder(parallelism=2)
    bolts: dict[str, Callable[[], Any]] = {
        "prepare": lambda: NotingBolt(
            on_prepare=lambda bolt: action() if bolt.context.task_index == 1 else None
        ),
        "execute": lambda: NotingBolt(on_execute=lambda bolt, tup: action()),
        "finish_batch": lambda: NotingBolt(
            on_finish=lambda bolt: action() if bolt.context.task_index == 1 else None
        ),
    }
    declared.set_bolt("before", NotingBolt(pass_on), 2).none_grouping("spout")
    declared.set_bolt("bad", bolts[hook](), 2).none_grouping("before")
    declared.set_bolt("after", NotingBolt(), 3).shuffle_grouping("bad")
    ran = run_once(declared.build_topology(), {1: rows("a")}, cores=cores, rng=random.Random(7))
    assert ran.failed_in == "processing"
    return failure_of(ran)


@pytest.mark.parametrize(
    ("action", "described"), [error[1:] for error in ERRORS], ids=[error[0] for error in ERRORS]
)
@pytest.mark.parametrize("hook", ["prepare", "execute", "finish_batch"])
@pytest.mark.parametrize("cores", [1, 2])
def test_any_exception_of_a_bolt_is_told_with_component_task_attempt_and_hook(
    action: Callable[..., None], described: str, hook: str, cores: int
) -> None:
    failure = in_processing(hook, action, cores)
    assert (failure.kind, failure.component, failure.task, failure.attempt) == (
        "error",
        "bad",
        1,
        FIRST,
    )
    assert (failure.phase, failure.hook) == ("processing", hook)
    assert failure.error.startswith(described)
    assert "/txtopo/dataplane/" not in failure.traceback
    assert "test_task_failures.py" in failure.traceback
    error = failure.to_error()
    assert isinstance(error, UserCodeError)
    assert (error.component, error.task, error.attempt, error.phase, error.hook) == (
        "bad",
        1,
        "1:0",
        "processing",
        hook,
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("cores", [1, 2])
def test_failed_exception_asks_for_a_replay_and_is_no_error(cores: int) -> None:
    class MineError(FailedException):
        pass

    failure = in_processing("execute", raising(lambda: MineError("source is away")), cores)
    assert failure.kind == "failed"
    assert failure.error.endswith("MineError: source is away")


def test_a_stale_attempt_is_told_apart_from_an_ordinary_failure() -> None:
    assert (
        in_processing(
            "execute", raising(lambda: StaleAttemptError("counts", "sum", "2:0", "1:0")), 1
        ).kind
        == "stale"
    )


def test_an_error_of_ours_comes_back_as_itself() -> None:
    error = in_processing("execute", raising(lambda: ConfigError("no such file")), 2).to_error()
    assert type(error) is ConfigError
    assert str(error) == "no such file"


def test_a_conflict_in_a_store_comes_back_as_its_public_error() -> None:
    error = in_processing(
        "execute", raising(lambda: conflicts.StoreConflict("counts", "cat", "a/0", "b/1", 1)), 1
    ).to_error()
    assert type(error) is StoreConflictError
    assert "cat" in error.error


def _fails_in_commit(bolt: NotingBolt) -> None:
    raise FailedException(f"task {bolt.context.task_index}")


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_a_failure_in_the_commit_phase_is_told_and_components_downstream_do_not_run(
    cores: int,
) -> None:
    declared = builder()
    declared.set_bolt("sum", NotingCommitter(on_finish=_fails_in_commit), 3).all_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 2).shuffle_grouping("sum")
    ran = run_once(declared.build_topology(), {0: rows("a")}, cores=cores)
    assert ran.failed_in == "commit"
    failure = failure_of(ran)
    assert (failure.kind, failure.component, failure.phase, failure.hook) == (
        "failed",
        "sum",
        "commit",
        "finish_batch",
    )
    assert "after" not in {
        event.component
        for event in ran.events
        if event.phase == "commit" and event.hook == "finish_batch"
    }


@pytest.mark.rule(15)
@pytest.mark.parametrize("hook", ["prepare", "execute", "cleanup"])
def test_a_basic_bolts_failure_names_the_hook(hook: str) -> None:
    bolt = type("Bad", (NotingBasicBolt,), {hook: raising(lambda: ValueError("mine"))})()
    declared = builder()
    declared.set_bolt("bad", bolt).shuffle_grouping("spout")
    failure = failure_of(run_once(declared.build_topology(), {0: rows("a")}))
    assert (failure.component, failure.hook, failure.error) == ("bad", hook, "ValueError: mine")


def test_a_hook_with_the_wrong_arguments_is_the_users_error() -> None:
    class Wrong(NotingBolt):
        def finish_batch(self, extra: Any) -> None:  # type: ignore[override]
            """Takes one too many."""

    declared = builder()
    declared.set_bolt("bad", Wrong()).shuffle_grouping("spout")
    failure = failure_of(run_once(declared.build_topology(), {}))
    assert failure.hook == "finish_batch"
    assert "missing 1 required positional argument: 'extra'" in failure.error


# -- a recorded failure cannot be undone ---------------------------------------------------------


def _swallow_exception(bolt: Any, tup: Tuple) -> None:
    try:
        bolt.emit(tup[1])
    except Exception:
        bolt.seen.append("swallowed")


def _swallow_everything(bolt: Any, tup: Tuple) -> None:
    try:
        bolt.emit(tup[1])
    except:  # noqa: E722
        bolt.seen.append("swallowed")


def _swallow_in_finally(bolt: Any, tup: Tuple) -> None:
    for _ in range(1):
        try:
            bolt.emit(tup[1])
        finally:
            break  # noqa: B012


def _replace(bolt: Any, tup: Tuple) -> None:
    try:
        bolt.emit(tup[1])
    except BaseException:
        raise ValueError("mine instead") from None


@pytest.mark.parametrize(
    "upstream",
    [_swallow_exception, _swallow_everything, _swallow_in_finally, _replace],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("cores", [1, 2])
def test_an_upstream_try_around_emit_does_not_undo_a_failure(
    upstream: Callable[[Any, Tuple], None], cores: int
) -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("swallows", NotingBolt(upstream), 2).none_grouping("spout")
    declared.set_bolt("swallows-too", NotingBolt(upstream), 2).none_grouping("swallows")
    declared.set_bolt(
        "bad", NotingBolt(raising(lambda: FailedException("not now"))), 2
    ).none_grouping("swallows-too")
    ran = run_once(declared.build_topology(), {0: rows("a", "b"), 1: rows("c")}, cores=cores)
    failure = failure_of(ran)
    assert (failure.kind, failure.component, failure.error) == (
        "failed",
        "bad",
        "txtopo.errors.FailedException: not now",
    )
    assert ran.executed("bad") in (["a"], ["c"]), (
        "it fails at once, and nothing more is executed there"
    )


@pytest.mark.parametrize("hook", ["on_prepare", "on_finish"])
def test_a_try_around_emit_in_prepare_or_finish_batch_does_not_undo_a_failure_either(
    hook: str,
) -> None:
    def swallow(bolt: Any) -> None:
        try:
            bolt.emit("a")
        except BaseException:
            bolt.seen.append("swallowed")

    declared = builder()
    hooks: dict[str, Any] = {hook: swallow}
    declared.set_bolt("swallows", NotingBolt(**hooks)).none_grouping("spout")
    declared.set_bolt("bad", NotingBolt(raising(lambda: FailedException("not now")))).none_grouping(
        "swallows"
    )
    ran = run_once(declared.build_topology(), {})
    assert failure_of(ran).component == "bad"
    assert ("processing", "finish_batch") not in ran.of("bad"), (
        "once it has failed, no further hook is called"
    )


def _swallow_basic(bolt: NotingBasicBolt, tup: Tuple, collector: BasicOutputCollector) -> None:
    try:
        collector.emit(list(tup))
    except BaseException:
        return


def test_a_basic_bolt_upstream_cannot_undo_a_failure_either() -> None:
    declared = builder()
    declared.set_bolt("swallows", NotingBasicBolt(_swallow_basic)).none_grouping("spout")
    declared.set_bolt("bad", NotingBolt(raising(lambda: FailedException("not now")))).none_grouping(
        "swallows"
    )
    assert failure_of(run_once(declared.build_topology(), {0: rows("a")})).component == "bad"


class SwallowingSpout(RowsSpout):
    def get_emitter(self, conf: Any, context: Any) -> Any:
        emitter = super().get_emitter(conf, context)
        emit = emitter.emit_partition_batch

        def swallowing(*args: Any) -> None:
            try:
                emit(*args)
            except BaseException:
                return

        emitter.emit_partition_batch = swallowing  # type: ignore[assignment, method-assign]
        return emitter


@pytest.mark.rule(7, 22)
def test_a_spout_cannot_undo_a_failure_and_is_closed_after_it() -> None:
    declared = builder(SwallowingSpout())
    declared.set_bolt("bad", NotingBolt(raising(lambda: FailedException("not now")))).none_grouping(
        "spout"
    )
    ran = run_once(declared.build_topology(), {0: rows("a")})
    assert failure_of(ran).component == "bad"
    assert ran.of("spout")[-1] == ("processing", "close")


def _swallow_and_go_on(bolt: Any, tup: Tuple) -> None:
    for i in range(1000):
        try:
            bolt.emit(i)
        except BaseException:
            bolt.seen.append(i)


def test_emits_after_a_failure_downstream_reach_no_task() -> None:
    declared = builder()
    declared.set_bolt("goes-on", NotingBolt(_swallow_and_go_on)).none_grouping("spout")
    declared.set_bolt("bad", NotingBolt(raising(lambda: FailedException("not now")))).none_grouping(
        "goes-on"
    )
    ran = run_once(declared.build_topology(), {0: rows("a")})
    assert failure_of(ran).component == "bad"
    assert ran.executed("bad") == [0]


# -- travelling ----------------------------------------------------------------------------------


def test_with_several_slots_a_processing_failure_ends_its_task_at_once_and_the_text_gives_it_back() -> (
    None
):
    declared = builder(parallelism=2)
    declared.set_bolt("bad", NotingBolt(raising(lambda: ValueError("müde"))), 2).none_grouping(
        "spout"
    )
    with InProcessTopology(declared.build_topology(), cores=2) as topology:
        job = topology.job("processing", batch=planned({0: rows("a")}))
        with pytest.raises(FailureInTaskError) as raised:
            SlotRun(topology.worker, job, 0, 0, 1).run(iter([b""]))
        wrapped = f"org.apache.spark.api.python.PythonException: Traceback ...\n{raised.value}\n\tat org.apache.spark.X"
        failure = outcome.from_text(wrapped, topology.worker.run.secret)
    assert failure is not None
    assert (failure.component, failure.task, failure.error) == ("bad", 0, "ValueError: müde")


def test_a_text_without_a_failure_gives_none() -> None:
    assert outcome.from_text("Job aborted due to stage failure", b"secret") is None
    assert outcome.from_text("<txtopo-failure: but no end", b"secret") is None


class Unpickled:
    """Code in a place where a text of Spark's quotes it."""

    def __reduce__(self) -> Any:
        return _unpickled, ()


def _unpickled() -> None:
    raise AssertionError("what is not ours was unpickled")


def test_a_quoted_failure_is_not_unpickled_without_the_signature_of_the_run() -> None:
    ours = Failure("error", "bolt", 0, FIRST, "processing", "execute", "ValueError: ours", "")
    evil = base64.b64encode(pickle.dumps(Unpickled())).decode()
    signature = ours.to_text(b"secret").split(":")[1]
    quoted = [
        f"<txtopo-failure:{evil}:>",
        f"<txtopo-failure:{'0' * 64}:{evil}:>",
        f"<txtopo-failure:{signature}:{evil}:>",
        ours.to_text(b"other"),
    ]
    for text in quoted:
        assert outcome.from_text(f"bad line: {text}", b"secret") is None
    assert outcome.from_text("\n".join([*quoted, ours.to_text(b"secret")]), b"secret") == ours, (
        "theirs hides ours"
    )


def test_every_run_has_a_secret_of_its_own_that_travels_and_is_not_shown() -> None:
    with (
        InProcessTopology(builder().build_topology()) as first,
        InProcessTopology(builder().build_topology()) as second,
    ):
        assert first.worker.run.secret != second.worker.run.secret
        assert pickling.loads(pickling.dumps(first.worker.run)).secret == first.worker.run.secret
        assert "secret" not in repr(first.worker.run)


def test_with_one_slot_a_failure_is_in_the_report() -> None:
    declared = builder()
    declared.set_bolt("bad", NotingBolt(raising(lambda: ValueError("mine")))).none_grouping("spout")
    declared.set_bolt("after", NotingBolt(), 2).all_grouping("bad")
    ran = run_once(declared.build_topology(), {0: rows("a")})
    assert [report.failure for report in ran.reports["processing"]] == [failure_of(ran)] * 2
    assert ran.of("after") == [], "a level that hears of a failure runs nothing"


def deep(n: int) -> None:
    if n:
        deeper(n - 1)
    raise ValueError("at the bottom")


def deeper(n: int) -> None:
    deep(n)


def test_the_line_that_raised_is_shown_however_deep_it_is() -> None:
    failure = in_processing("execute", lambda *ignored: deep(60), 1)
    assert 'raise ValueError("at the bottom")' in failure.traceback


def test_a_line_of_code_that_only_the_driver_has_is_shown_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of a cell of a notebook, or of a file that is not on the machine of the worker."""
    monkeypatch.setitem(
        linecache.cache,
        "<cell 3>",
        (9, None, ["def parse(word):\n", "    return int(word)\n"], "<cell 3>"),
    )
    frames = '  File "<cell 3>", line 2, in parse\n  File "/no/such.py", line 7, in run\n  File "<cell 3>", line 1, in <module>\n    as it was\n'
    failure = outcome.Failure(
        "error",
        "parse",
        0,
        FIRST,
        "processing",
        "execute",
        "ValueError: tea",
        f"{frames}ValueError: tea\n",
    )
    shown = frames.replace("in parse\n", "in parse\n    return int(word)\n")
    assert f"\n{shown}ValueError: tea" in str(failure)
    assert f"\n{shown}ValueError: tea" in str(failure.to_error())


def test_causes_are_shown_too_and_none_of_our_frames_among_them() -> None:
    def hook(*ignored: Any) -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    traceback = in_processing("execute", hook, 1).traceback
    assert "KeyError: 'first'" in traceback
    assert "The above exception was the direct cause" in traceback
    assert "/txtopo/dataplane/" not in traceback


def test_a_huge_message_is_cut() -> None:
    failure = in_processing("execute", raising(lambda: ValueError("x" * 10_000_000)), 2)
    assert len(failure.error) <= 20_000
    assert len(failure.traceback) <= 20_100


class Fragile:
    """Comes back from its pickle so many times, and then no more."""

    lives = 0

    def __setstate__(self, state: Any) -> None:
        Fragile.lives -= 1
        if Fragile.lives < 0:
            raise ValueError("lost in transit")

    def __reduce__(self) -> Any:
        return Fragile, (), {"a": 1}


@pytest.mark.parametrize("grouping", ["none", "all"])
def test_a_value_that_does_not_arrive_is_the_users_failure_and_no_crash(grouping: str) -> None:
    def emit(bolt: Any, tup: Tuple) -> None:
        Fragile.lives = 1
        bolt.emit(Fragile())

    declared = builder()
    declared.set_bolt("sends", NotingBolt(emit)).none_grouping("spout")
    getattr(declared.set_bolt("receives", NotingBolt(), 2), f"{grouping}_grouping")("sends")
    ran = run_once(declared.build_topology(), {0: rows("a")})
    if grouping == "none":
        assert ran.failure is None, "it never left the process"
        return
    failure = failure_of(ran)
    assert (failure.component, failure.task, failure.error) == (
        "receives",
        0,
        "ValueError: lost in transit",
    )


def test_the_first_failure_of_a_slot_is_the_one_that_is_told() -> None:
    def execute(bolt: Any, tup: Tuple) -> None:
        try:
            bolt.emit("a")
        finally:
            raise ValueError("second")

    declared = builder()
    declared.set_bolt("both", NotingBolt(execute)).none_grouping("spout")
    declared.set_bolt("bad", NotingBolt(raising(lambda: FailedException("first")))).none_grouping(
        "both"
    )
    assert failure_of(run_once(declared.build_topology(), {0: rows("a")})).error.endswith("first")


def test_a_failed_attempt_leaves_nothing_behind_for_the_next() -> None:
    declared = builder(parallelism=2)
    declared.set_bolt("bad", NotingBolt(lambda bolt, tup: _fail_first(bolt)), 2).none_grouping(
        "spout"
    )
    declared.set_bolt("sum", NotingCommitter()).global_grouping("bad")
    with InProcessTopology(declared.build_topology()) as topology:
        assert topology.run(planned({0: rows("a", "b")})).failure is not None
        ran = topology.run(planned({0: rows("a", "b")}), TransactionAttempt(1, 1))
    assert ran.failure is None
    assert ran.executed("sum") == ["once", "once"]


def _fail_first(bolt: Any) -> None:
    bolt.emit("once")
    if bolt.attempt.attempt_id == 0:
        raise FailedException
