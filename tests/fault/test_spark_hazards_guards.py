"""Each guard of R33 alone: the effect of each guard as the only one left, and the damage
without any.

Most need a cluster without the settings that txtopo requires, where Spark tries tasks and stages
again as it does by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers.standalone import Daemon, StandaloneCluster
from tests.wrong.hazards import Answer, HazardousCluster
from tests.wrong.weakened import GUARDS

pytestmark = pytest.mark.rule(33)


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HazardousCluster]:
    """Spark's own defaults: four tries of a task, four of a stage."""
    with HazardousCluster("lenient", tmp_path_factory.mktemp("hazards") / "log") as cluster:
        yield cluster


def all_but(*guards: str) -> list[str]:
    assert set(guards) <= set(GUARDS)
    return [guard for guard in GUARDS if guard not in guards]


LEVELS = (("numbers", "emitted"), ("pass", "finish"))


def _first_pid(answer: Answer, beginning: str) -> str:
    return next(line for line in answer.journal if line.startswith(beginning)).split()[-1]


def mixes(answer: Answer) -> bool:
    """Whether consumers of txid 2 got tuples of two emissions."""
    return any(
        "txid 2 mixes 2 computations of numbers/" in violation for violation in answer.violations
    )


def played_on_both(
    cluster: HazardousCluster,
    scenario: str,
    tmp_path: Path,
    removed: Sequence[str],
    has_struck: Callable[[Answer], bool] = lambda _: True,
) -> Answer:
    """Have ``scenario`` played, again if Spark gave both tasks of a level of txid 2 to one
    executor, because with that all of it is lost, and again until it ``has_struck``."""
    for number in range(8):
        directory = tmp_path / str(number)
        directory.mkdir()
        answer = cluster.play(scenario, directory, removed)
        are_apart = all(
            _first_pid(answer, f"{of} 0 {level} 2:0 ") != _first_pid(answer, f"{of} 1 {level} 2:0 ")
            for of, level in LEVELS
        )
        if are_apart and has_struck(answer):
            return answer
    raise AssertionError("Spark never used both executors, or lost nothing that mattered")


@pytest.mark.thorough
def test_without_any_guard_an_executor_killed_between_map_and_reduce_mixes_two_emissions(
    lenient: HazardousCluster, tmp_path: Path
) -> None:
    # On a busy machine the executor may die after its last block was fetched; then nothing is
    # computed twice.
    answer = played_on_both(
        lenient, "killed between map and reduce", tmp_path, GUARDS, has_struck=mixes
    )
    assert (answer.refusals, answer.replays) == ([], 0), "Spark called it a success"


@pytest.mark.thorough
def test_chunk_agreement_alone_refuses_to_mix_two_emissions(
    lenient: HazardousCluster, tmp_path: Path
) -> None:
    answer = played_on_both(
        lenient,
        "killed between map and reduce",
        tmp_path,
        all_but("agreement"),
        lambda answer: bool(answer.refusals or answer.violations),
    )
    assert any("MixedEmissionsError" in refusal for refusal in answer.refusals)
    assert answer.violations == []


@pytest.mark.thorough
@pytest.mark.rule(10)
def test_without_the_required_settings_a_stage_is_tried_again_and_bolts_run_twice_in_one_attempt(
    lenient: HazardousCluster, tmp_path: Path
) -> None:
    """All data of the first try is gone, so that no mixture is left, and the other guards let the
    task pass."""
    answer = lenient.play("shuffle files lost", tmp_path)
    assert [line.split()[3] for line in answer.journal if line.startswith("pass 0 finish 2:")] == [
        "2:0",
        "2:0",
    ]
    assert (answer.refusals, answer.violations) == ([], [])


@pytest.mark.thorough
def test_without_any_guard_a_lost_block_runs_the_spout_again_in_the_commit(
    lenient: HazardousCluster, tmp_path: Path
) -> None:
    answer = played_on_both(lenient, "killed between the phases, pinned", tmp_path, GUARDS)
    assert answer.refusals == [], "Spark called it a success"
    assert any("txid 2 mixes 2 computations of" in violation for violation in answer.violations)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("guard", "refusal"),
    [
        ("job check", "WrongJobError: level"),
        ("held-state fence", "a pinned result was made by task attempt"),
        pytest.param(
            "local checkpoint", "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", marks=pytest.mark.thorough
        ),
    ],
    ids=["job-check", "held-state-fence", "local-checkpoint"],
)
def test_each_guard_of_a_lost_block_is_enough(
    lenient: HazardousCluster, tmp_path: Path, guard: str, refusal: str
) -> None:
    answer = played_on_both(lenient, "killed between the phases, pinned", tmp_path, all_but(guard))
    assert answer.struck == ["struck between the phases"]
    assert any(text.startswith("commit: ") and refusal in text for text in answer.refusals)
    assert answer.violations == []


@pytest.mark.thorough
def test_chunk_agreement_alone_does_not_mix_a_task_and_its_speculative_copy(tmp_path: Path) -> None:
    """Which of the two Spark takes is chance; that both have run is not."""
    with StandaloneCluster(tmp_path / "spark", workers=1) as spark:
        elsewhere = Daemon(
            "worker.Worker",
            ["--host", "127.0.0.2", "-c", "1", "-m", "1g", "--webui-port", "0", spark.url],
            tmp_path / "elsewhere",
        )
        spark.workers.append(elsewhere)
        elsewhere.wait_for("Successfully registered with master")
        with HazardousCluster("lenient", tmp_path / "log", spark.url) as lenient:
            answer = lenient.play("speculation", tmp_path, all_but("agreement"))
    assert answer.struck == ["struck numbers 1 emitted wait for a copy"]
    copies = [line for line in answer.journal if line.startswith("numbers 1 emitted 2:0 ")]
    assert len(copies) == 2, "Spark did not speculate"
    assert answer.violations == []


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HazardousCluster]:
    """The required settings are a guard, too."""
    with HazardousCluster("strict", tmp_path_factory.mktemp("hazards") / "log") as cluster:
        yield cluster


@pytest.mark.thorough
def test_the_required_settings_alone_fail_the_attempt(
    strict: HazardousCluster, tmp_path: Path
) -> None:
    answer = strict.play("killed between map and reduce", tmp_path, GUARDS)
    assert any("failed 1 times" in refusal for refusal in answer.refusals)
    assert answer.violations == []


@pytest.mark.thorough
def test_without_the_held_state_fence_the_required_settings_are_not_enough(
    strict: HazardousCluster, tmp_path: Path
) -> None:
    """Spark makes a block again that it lost before the lineage was cut; the batch then holds other
    tuples than its metadata says.

    A second emission that is by chance as long as the first does no harm, so it is tried a few
    times.
    """
    violations = []
    for number in range(5):
        directory = tmp_path / str(number)
        directory.mkdir()
        answer = strict.play("killed when half is pinned", directory, ["held-state fence"])
        assert answer.refusals == []
        violations += answer.violations
    assert any(violation.startswith(("lost", "counted twice")) for violation in violations)
