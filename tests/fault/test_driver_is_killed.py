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
from txtopo.journal import fold, reader, recording, watch, writer

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
    for number, kill in enumerate(KILLS, 1):
        done = drive(name, tmp_path, pending, fault=f"{kill}=kill")
        assert done.returncode == -signal.SIGKILL, (
            f"{kill} was not hit:\n{done.stdout}\n{done.stderr}"
        )
        assert f"fault: {kill.split('@')[0]} at txid {kill.split('@')[1]}: kill" in done.stderr
        assert watched_run(tmp_path) == (number, False, None)
    last = drive(name, tmp_path, pending)
    assert last.returncode == 0, last.stderr
    assert re.search(
        rf"began at 3, committed 1, current 4, epoch {len(KILLS) + 1}$", last.stdout.strip()
    ), last.stdout
    check_journal(recording.place(tmp_path / "zookeeper", topology_id_of(tmp_path / "zookeeper")))
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


def watched_run(tmp_path: Path) -> tuple[int, bool, object]:
    """The newest run, seen from outside: its epoch, whether it is alive, and its end."""
    place = recording.place(tmp_path / "zookeeper", topology_id_of(tmp_path / "zookeeper"))
    run = watch.Watch(place).refresh()["run"]
    return run["epoch"], run["is_alive"], run["ended"]


def topology_id_of(data_dir: Path) -> str:
    """The topology whose journal is in ``data_dir``."""
    (journal,) = (data_dir / recording.FOLDER).iterdir()
    return journal.name


def check_journal(place: Path) -> None:
    """Each run has begun a segment. Killed runs have no end. A commit whose news the kill cut off
    is in a hole, and every other commit has one record."""
    journal = reader.Reader(place)
    view = fold.fold(journal.about(range(1, 4)))
    assert len(view.runs) == len(writer.segments(place)) == len(KILLS) + 1
    assert [run["ended"] is not None for run in view.runs] == [False] * len(KILLS) + [True]
    assert view.current == 4
    recorded = {txid for txid, each in view.transactions.items() if each.committed is not None}
    in_holes = {txid for first, last in view.holes(1, 3) for txid in range(first, last + 1)}
    assert 1 in in_holes, "record.after@1 comes before the news"
    assert 3 in recorded, "the last run ended in order"
    assert recorded | in_holes == {1, 2, 3}
    assert recorded & in_holes == set()
    commits = [
        each["outcome"] for one in view.transactions.values() for each in one.attempts
    ].count("committed")
    assert commits == len(recorded)
