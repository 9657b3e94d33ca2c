"""The soak reports every violation: tests break the foundations of its checkers on purpose, in the
processes that really run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.soak.__main__ import STORES
from tests.soak.driver import ROOT
from tests.soak.trial import Plan, Trial
from tests.soak.world import World


@pytest.mark.thorough
@pytest.mark.rule(28)
def test_a_store_that_applies_twice_ends_the_soak_with_all_it_takes_to_look_into_it() -> None:
    command = "--seed 2 --seconds 60 --workload bank --nemesis none --store sqlite --zookeeper inside --sabotage blind-store"
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    kept = re.search(r"^all files: (.+)$", done.stdout, flags=re.MULTILINE)
    assert kept is not None, done.stdout + done.stderr
    directory = Path(kept[1])
    try:
        assert done.returncode == 1
        assert done.stdout.startswith("seed 2\n")
        assert "VIOLATION with seed 2, none against bank, sqlite" in done.stdout
        assert re.search(
            r"^  bank: after rows .*: 'account \d' is -?\d+, not -?\d+",
            done.stdout,
            flags=re.MULTILINE,
        ), done.stdout
        assert re.search(
            r"^ +\d+\.\d s  driver 1 \(first, pid \d+\) starts$", done.stdout, flags=re.MULTILINE
        )
        assert "again: python -m tests.soak --seed 2 --seconds 60 --store sqlite" in done.stdout
        assert {"world.json", "history.txt", "driver-1.err", "driver-1.jsonl", "bank.db"} <= {
            file.name for file in directory.iterdir()
        }
    finally:
        shutil.rmtree(directory)


@pytest.mark.thorough
@pytest.mark.rule(18, 31)
@pytest.mark.parametrize(
    ("sabotage", "workload", "violation"),
    [
        (
            "no-take-back",
            "opaque",
            r"opaque: (tuple \d/\d+ counts 2 times|counts are not what the tuples)",
        ),
        (
            "no-take-back",
            "planned-opaque",
            r"planned-opaque: (tuple \d/\d+ counts 2 times|counts are not what the tuples)",
        ),
        ("unsteady-source", "words", r"words: '\w+'"),
        ("blind-store", "append", r"append: 'key \d+' has a transaction twice"),
    ],
    ids=[
        "opaque, without taking back",
        "planned opaque, without taking back",
        "words of an unsteady source",
        "append to a blind store",
    ],
)
def test_broken_foundations_are_noticed(sabotage: str, workload: str, violation: str) -> None:
    outcome = Trial(
        Plan(World("", 2, (workload,), sabotage=sabotage), ("none",), PATIENCE_S, outside=False)
    ).run()
    assert outcome.directory is not None, f"nothing was noticed in {outcome.transactions}"
    shutil.rmtree(outcome.directory)
    assert re.search(violation, "\n".join(outcome.violations)), outcome.violations


@pytest.mark.thorough
@pytest.mark.rule(34)
@pytest.mark.parametrize("store", STORES)
def test_a_fence_whose_transactions_are_not_counted_is_noticed_when_a_replica_with_a_part_of_an_attempt_takes_over(
    store: str,
) -> None:
    world = World("", 2, ("append", "words"), store=store, sabotage="no-counts")
    outcome = Trial(Plan(world, ("fail-over",), PATIENCE_S, outside=True)).run()
    assert outcome.directory is not None, f"nothing was noticed in {outcome.tally}"
    shutil.rmtree(outcome.directory)
    assert re.search(r"append: |words: ", "\n".join(outcome.violations)), outcome.violations


@pytest.mark.thorough
@pytest.mark.rule(3, 23, 28, 31)
def test_an_unbroken_trial_survives_and_leaves_no_process() -> None:
    outcome = Trial(
        Plan(World("", 3, ("bank", "append", "opaque", "words")), ("driver",), 20.0, outside=False)
    ).run()
    assert outcome.violations == []
    assert outcome.tally["driver killed"] > 0
    assert min(outcome.transactions.values()) > 3
    assert outcome.reads > 100
    assert outcome.directory is None
