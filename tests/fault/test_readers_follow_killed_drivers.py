"""Readers that never pause, while Spark drivers of one topology are killed in turn: every driver
starts, and no reader is misled."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.processes import owners, readers
from tests.quick_java import QUICK_JAVA
from tests.topologies import endless_words

LIVES = 50
MORE = 5
"""The number of transactions that the last driver commits before it ends by itself."""
PROGRAMS = readers.POLLING, readers.TYPING, readers.AS_OF


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.rule(25, 28, 37)
def test_fifty_killed_drivers_start_and_count_exactly_under_readers_that_never_pause(
    tmp_path: Path,
) -> None:
    data_dir, committed, follows = tmp_path / "state", 0, 0
    with contextlib.ExitStack() as stack:
        polling: list[readers.Reader] = []
        for life in range(LIVES):
            with _driver(data_dir, life) as driver:
                seen = [len(reader.seen) for reader in polling]
                # The driver has asked ZooKeeper itself how far the killed driver came.
                recorded = _report(driver)
                assert recorded >= committed, f"life {life} has lost what was recorded"
                for reader, count in zip(polling, seen, strict=True):
                    assert reader.seen[:count][-1] <= recorded, (
                        f"before life {life} a reader was ahead of what was recorded"
                    )
                while committed <= recorded + life % 4:
                    committed = _report(driver)
                if life == 0:
                    polling = [
                        stack.enter_context(readers.Reader(data_dir, program))
                        for program in PROGRAMS
                    ]
                if life % 5 == 0:
                    _follow(polling, committed)
                driver.kill()
            if life % 5 == 2:
                _follow(polling, committed)
            follows += life % 5 in (0, 2)
        with _driver(data_dir, LIVES, str(MORE)) as driver:
            recorded = _report(driver)
            assert recorded >= committed
            while committed < recorded + MORE:
                committed = _report(driver)
            assert driver.wait() == 0
        _follow(polling, committed)
        for reader in polling:
            assert reader.process.poll() is None, reader.words()
            seen = list(reader.seen)  # a reader goes on
            assert seen == sorted(seen), "what was seen is never taken back"
            assert reader.seen[-1] == committed
            assert len(set(reader.seen)) > follows, "the reader has followed the lives"
    assert dict(endless_words.open_store(data_dir).items()) == endless_words.expected(committed)


def _driver(data_dir: Path, life: int, ends_after: str = "") -> owners.Owner:
    environment = {"JDK_JAVA_OPTIONS": QUICK_JAVA}
    return owners.Owner(data_dir, endless_words.DRIVING, environment, [str(life), ends_after])


def _report(driver: owners.Owner) -> int:
    return int(driver.report()["committed"])


def _follow(polling: list[readers.Reader], committed: int) -> None:
    for reader in polling:
        reader.wait_for(committed)
