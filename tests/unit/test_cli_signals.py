"""Ctrl-C and SIGTERM, in this very process: counted while a run is watched, and everything as
before afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE_S
from txtopo.command import signals


def ignored(signum: int, frame: object) -> None:
    """A handler as if another library had installed it."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {signum: signal.signal(signum, ignored) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert signal.getsignal(signal.SIGINT) is ignored
    assert signal.getsignal(signal.SIGTERM) is ignored
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_once_asks_twice_forces_and_the_third_interrupts() -> None:
    early: list[str] = []
    with signals.StopSignals(lambda: early.append("early")) as stop:
        stop.watch()
        assert (stop.is_requested, stop.is_forced) == (False, False)
        signal.raise_signal(signal.SIGINT)
        assert (stop.is_requested, stop.is_forced) == (True, False)
        signal.raise_signal(signal.SIGTERM)
        assert (stop.is_requested, stop.is_forced, stop.signum) == (True, True, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as interruption:
            signal.raise_signal(signal.SIGINT)
    assert signals.exit_code_of(interruption.value) == 130
    assert early == []


def test_before_a_run_is_watched_the_first_is_remembered_and_the_second_interrupts() -> None:
    early: list[str] = []
    with signals.StopSignals(lambda: early.append("early")) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop.is_requested, early) == (True, ["early"])
        with pytest.raises(KeyboardInterrupt) as interruption:
            signal.raise_signal(signal.SIGTERM)
    assert signals.exit_code_of(interruption.value) == 143


def test_handlers_that_something_else_installs_meanwhile_are_replaced_when_watching_begins() -> (
    None
):
    with signals.StopSignals(lambda: None) as stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # As SparkContext does.
        stop.watch()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested


def test_handlers_are_put_back_also_when_the_run_fails() -> None:
    with pytest.raises(ValueError, match="failed"), signals.StopSignals(lambda: None):
        raise ValueError("failed")


def test_a_thread_that_may_not_handle_signals_runs_without() -> None:
    seen: list[object] = []

    def enter() -> None:
        with signals.StopSignals(lambda: None) as stop:
            stop.watch()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [ignored]


def test_an_ordinary_interrupt_counts_as_ctrl_c() -> None:
    assert signals.exit_code_of(KeyboardInterrupt()) == 130
