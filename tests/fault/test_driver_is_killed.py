"""SIGKILL of the driver at every step of a commit, one after the other over one state; then a last
run, which must come to the same end.

Each kill hits a process of its own, and the next begins without waiting for the dead one's session,
which is longer than the test.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from starter import transactional_global_count, transactional_words
from tests.processes.drivers import drive

# A driver is killed at each of these points, in order. ``record.after`` ends a transaction,
# so that the txid grows afterwards.
KILLS = [
    "seal.before@1",
    "seal.after@1",
    "apply.after@1",
    "record.after@1",
    "seal.after@2",
    "apply.before@2",
    "record.before@2",
    "forget.after@2",
    "apply.after@3",
]


@pytest.mark.thorough
@pytest.mark.rule(3, 23, 25, 26, 28)
@pytest.mark.parametrize(
    ("name", "pending"), [("global-count", 3), pytest.param("words", 1, marks=pytest.mark.thorough)]
)
def test_killed_at_every_step_everything_still_counts_once(
    tmp_path: Path, name: str, pending: int
) -> None:
    for kill in KILLS:
        done = drive(name, tmp_path, pending, fault=f"{kill}=kill")
        assert done.returncode == -signal.SIGKILL, (
            f"{kill} was not hit:\n{done.stdout}\n{done.stderr}"
        )
        assert f"fault: {kill.split('@')[0]} at txid {kill.split('@')[1]}: kill" in done.stderr
    last = drive(name, tmp_path, pending)
    assert last.returncode == 0, last.stderr
    assert re.search(
        rf"began at 3, committed 1, current 4, epoch {len(KILLS) + 1}$", last.stdout.strip()
    ), last.stdout
    if name == "global-count":
        assert (
            transactional_global_count.open_store(tmp_path / "store.db").get("GLOBAL-COUNT") == 19
        )
    else:
        counts, buckets = transactional_words.open_stores(tmp_path / "store.db")
        assert dict(counts.items()) == {"cat": 8, "dog": 7, "apple": 2, "banana": 1, "chicken": 1}
        cat = counts.inspect("cat")
        assert cat is not None
        assert (cat.curr, cat.prev, cat.txid) == (8, 5, 2)
        assert dict(buckets.items()) == {0: 5}
