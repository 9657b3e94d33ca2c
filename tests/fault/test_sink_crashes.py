"""A task of a sink is killed at every statement of its transaction, over every database and every
kind of sink; its replay makes it right."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.processes.sink_crashes import crash_everywhere
from tests.topologies.sinks import KINDS, OPAQUE, cases, shop

BEFORE = [[1, 10], [2, 20]]
AFTER = {
    "inserts": [[1, 10], [1, 11], [2, 20], [3, 30], [4, 40]],
    "marks": [[1, 10], [1, 11], [2, 20], [3, 30], [4, 40]],
    "upserts": [[1, 11], [2, 20], [3, 30], [4, 40]],
    "undo log": [[1, 11], [2, 20], [3, 30], [4, 40]],
    "a statement": [[1, 21], [2, 20], [3, 30], [4, 40]],
}
REPLAYED = {
    **AFTER,
    "marks": [[1, 10], [2, 20], [2, 21], [5, 50]],
    "undo log": [[1, 10], [2, 21], [5, 50]],
}


@pytest.mark.in_gate("mariadb-marks", "postgresql-undo log", "sqlite-upserts")
@pytest.mark.rule(28, 29, 30, 31, 40)
@pytest.mark.parametrize(("backend", "kind"), cases(KINDS))
def test_a_task_killed_at_any_statement_leaves_all_rows_or_none_and_its_replay_completes_them(
    backend: str, kind: str, tmp_path: Path
) -> None:
    *killed, whole = crash_everywhere(shop(backend, tmp_path, layout=None).address, kind)
    assert len(killed) > 15, "moments before and after every statement"
    assert {report["status"] for report in killed} == {-signal.SIGKILL}
    assert (whole["status"], whole["left"]) == (0, AFTER[kind])
    lefts = [report["left"] for report in killed]
    assert BEFORE in lefts
    assert AFTER[kind] in lefts, "killed when it had committed"
    for report in [*killed, whole]:
        assert report["left"] in (BEFORE, AFTER[kind]), report
        assert report["sales"] == REPLAYED[kind], report
        assert report["written"] == (kind in OPAQUE or report["left"] == BEFORE), report
