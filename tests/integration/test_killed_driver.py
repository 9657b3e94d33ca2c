"""SIGKILL of a driver after the effects of a transaction and before their record: the next driver
finds them, and everything counts once. ``tests/fault`` kills at every step."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from starter import transactional_global_count
from tests.processes.drivers import drive


@pytest.mark.rule(3, 23, 25, 28)
def test_a_transaction_whose_record_was_killed_counts_once(tmp_path: Path) -> None:
    kill = "apply.after@2"
    killed = drive("global-count", tmp_path, pending=3, fault=f"{kill}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "fault: apply.after at txid 2: kill" in killed.stderr
    store = transactional_global_count.open_store(tmp_path / "store.db")
    assert store.get("GLOBAL-COUNT") == 16
    last = drive("global-count", tmp_path, pending=3)
    assert last.returncode == 0, last.stderr
    assert re.search(r"began at 2, committed 2, current 4, epoch 2$", last.stdout.strip()), last.stdout
    assert store.get("GLOBAL-COUNT") == 19
