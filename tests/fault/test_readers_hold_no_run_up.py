"""Readers that never pause, while an owner of the data directory is killed and started again: every
start succeeds, and no reader breaks."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.processes import owners, readers

RESTARTS = 50


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_fifty_restarts_succeed_under_readers_that_never_pause(tmp_path: Path) -> None:
    data_dir, committed = tmp_path / "state", 0
    with owners.Owner(data_dir, readers.RECORDING) as owner:
        committed = owner.report()["committed"]
        owner.kill()
    programs = (readers.POLLING, readers.TYPING, readers.AS_OF)
    with contextlib.ExitStack() as stack:
        polling = [stack.enter_context(readers.Reader(data_dir, program)) for program in programs]
        suspended = stack.enter_context(readers.Reader(data_dir, readers.LOOKING))
        for reader in [*polling, suspended]:
            reader.wait_for(committed)
        lives = stack.enter_context(owners.Owner(data_dir, readers.LIVES))
        for life in range(RESTARTS):
            suspended.stop()
            lives.say()
            report = lives.report()
            assert report["committed"] == committed + 3
            committed = report["committed"]
            if life % 10 == 5:
                for reader in polling:
                    reader.wait_for(committed)
            # Half of the owners are killed, the others end by themselves: either breaks connections
            # of readers.
            if life % 2:
                os.kill(report["owner"], signal.SIGKILL)
            else:
                lives.say()
            assert owners.has_ended(report["owner"])
            suspended.go_on()
        assert all(len(set(reader.seen)) > 5 for reader in polling), (
            "readers have met many of the lives"
        )
        for reader in [*polling, suspended]:
            reader.wait_for(committed)
            seen = list(reader.seen)  # a reader goes on
            assert seen == sorted(seen), "what was seen is never taken back"
    assert committed == 3 * (RESTARTS + 1)


@pytest.mark.thorough
@pytest.mark.rule(37)
def test_a_suspended_reader_does_not_hold_up_a_start(tmp_path: Path) -> None:
    with owners.Owner(tmp_path, readers.RECORDING) as owner:
        committed = owner.report()["committed"]
        owner.kill()
    for _ in range(5):
        with readers.Reader(tmp_path, readers.LOOKING) as reader:
            reader.wait_for(committed)
            reader.stop()
            with owners.Owner(tmp_path, readers.RECORDING) as owner:
                committed = owner.report()["committed"]
                owner.kill()
    assert committed == 18
