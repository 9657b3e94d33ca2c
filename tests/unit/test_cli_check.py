"""``txtopo status --check``: conditions, facts that are met, failed or not known, exit codes."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_journal import attempt, head, write
from tests.unit.test_metrics import Words
from txtopo import ZooKeeperUnavailableError
from txtopo.command import check, cli
from txtopo.journal import recording

PROCESSING = ((3, 2_000_006, "processing"),)


class Checked:
    """A topology ``words`` that has committed 1 and 2, with its journal, as a check sees it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.path = data_dir, recording.place(data_dir, "words")
        self.path.mkdir(parents=True)
        self.words = Words(self.path)
        self.words.commit(1)
        self.words.commit(2)
        self.status: dict[str, Any] = {
            "topology_id": "words",
            "running": True,
            "generation": "first",
            "epoch": 1,
            "ended": None,
        }
        self.live = self.words.live(active=(), idle=False)
        self.at = datetime.datetime.fromisoformat(self.live["status"]["last_commit_at"])

    def facts(self, after_s: float = 0.0, **status: Any) -> dict[str, Any]:
        """The facts so long after the newest commit."""
        return check.facts({**self.status, **status}, self.path, self.at.timestamp() + after_s)

    def run(self, conditions: str) -> int:
        """The exit code."""
        return check.run(
            check.conditions(conditions), lambda: ([self.status], "nothing"), self.data_dir
        )


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    monkeypatch.setattr(check, "AGAIN_S", 0.0)
    monkeypatch.setattr("txtopo.journal.watch.SILENCE_S", float("inf"))
    return Checked(tmp_path)


def test_facts_of_a_run_that_commits(checked: Checked) -> None:
    write(checked.path, attempt(2), attempt(3, outcome="failed"), attempt(3, 1, "behind"))
    checked.words.live(active=PROCESSING, lag={"orders/0": 40, "orders/1": 2}, failed=4, behind=2)
    assert checked.facts(300.0) == {
        "age": 300.0,
        "attempts": 3,
        "failed": 4,
        "behind": 2,
        "running": 1,
        "lag": 42,
    }


def test_attempts_count_also_between_two_attempts_and_after_the_end(checked: Checked) -> None:
    """An attempt in flight when the run died is in no record."""
    write(checked.path, attempt(3, outcome="failed"), attempt(3, 1, "crash"))
    checked.words.live(active=())
    assert checked.facts()["attempts"] == 2
    checked.words.live(active=PROCESSING)
    assert checked.facts()["attempts"] == 3
    assert checked.facts(running=False)["attempts"] == 2


def test_an_idle_run_has_no_age_unless_it_has_died(checked: Checked) -> None:
    checked.words.live(idle=True)
    assert checked.facts(300.0)["age"] == 0
    assert checked.facts(300.0, running=False)["age"] == 300


def test_a_run_without_a_commit_has_the_age_of_the_last_run_s_commit(tmp_path: Path) -> None:
    path = recording.place(tmp_path, "words")
    path.mkdir(parents=True)
    words = Words(path)
    words.live(current=3)
    status = {"running": True, "generation": "first", "epoch": 1, "ended": None}
    now_s = 1_790_000_007.0
    assert check.facts(status, path, now_s)["age"] == "the journal has no commit"
    write(path, attempt(2), first=head())
    assert check.facts(status, path, now_s)["age"] == 7.0


def test_facts_of_another_run_are_not_known(checked: Checked) -> None:
    for other in ({"epoch": 2}, {"generation": "second"}):
        facts = checked.facts(running=False, **other)
        assert facts.pop("running") == 0
        assert set(facts.values()) == {f"its run keeps no live.json in {checked.path}"}
    ended = {"committed": 2, "failed": 7, "behind": 1}
    facts = checked.facts(running=False, epoch=2, ended=ended)
    assert (facts["failed"], facts["behind"]) == (7, 1)
    assert isinstance(facts["age"], str)


def test_facts_of_a_run_that_says_nothing_are_not_known(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txtopo.journal.watch.SILENCE_S", 15.0)
    written = datetime.datetime.fromisoformat(checked.words.run.write(is_last=True)["at"])
    now_s = written.timestamp()
    assert check.facts(checked.status, checked.path, now_s + 15)["attempts"] == 0
    facts = check.facts(checked.status, checked.path, now_s + 60)
    assert facts["age"] == f"{checked.path / 'live.json'} is 60 s old"
    assert facts["running"] == 1


def test_a_journal_that_may_not_be_read_gives_no_facts(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("txtopo.journal.live.read", refuse)
    assert checked.facts()["lag"] == f"{checked.path} cannot be read: Permission denied"


def test_the_reason_is_on_one_line_and_the_exit_code_tells(
    checked: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked.run("failed<1 attempts<=1 running=1") == 0
    assert checked.run("failed<1 attempts>=1 lag<5 running=0") == 1
    checked.status["running"] = False
    assert checked.run("running=1") == 1
    assert capsys.readouterr().out.splitlines() == [
        "words: failed 0, attempts 0, running 1",
        "words: attempts is 0, not >=1, lag is not known: the spout does not tell, running is 1, not =0",
        "words: running is 0, not =1",
    ]


def test_a_run_between_two_transactions_is_looked_at_again(checked: Checked) -> None:
    looks = [{**checked.status, "running": False}, checked.status]
    running = check.conditions("running=1")
    assert check.run(running, lambda: ([looks.pop(0)], ""), checked.data_dir) == 0
    assert looks == []


def test_without_topologies_or_zookeeper_a_check_fails(
    checked: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    def away() -> Any:
        raise ZooKeeperUnavailableError("ZooKeeper does not answer\n  Try again.")

    running = check.conditions("running=1")
    assert check.run(running, lambda: ([], "no topology\n  Name one."), checked.data_dir) == 1
    assert check.run(running, away, checked.data_dir) == 1
    assert capsys.readouterr().out == "no topology\nZooKeeper does not answer\n"


@pytest.mark.parametrize("text", ["", "age", "age<", "age<x", "age < 3", "speed<3", "age<3 lag"])
def test_a_wrong_condition_is_refused_with_the_fields(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "words", f"--check={text}"]) == 2
    assert "Fields: age, attempts, failed, behind, running, lag." in capsys.readouterr().err


def test_a_check_prints_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--json", "--check", "age<3"]) == 2
    assert "not allowed with argument --json" in capsys.readouterr().err
