"""The catalogue of mutations fits the source: ``make mutants`` takes minutes, and a quick test
should find a misfit first."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.guards import GUARDS
from tests.mutants.mutation import Mutation, unfold

ROOT = Path(__file__).resolve().parents[2]


def misfits(mutation: Mutation, tree: Path) -> list[str]:
    """The reasons why ``mutation`` cannot be applied to the source as it is."""
    text = (tree / mutation.file).read_text(encoding="utf-8")
    places = text.count(mutation.old)
    reasons = [] if places == 1 else [f"{mutation.file} has {places} places like its text"]
    try:
        compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")
    except SyntaxError as error:
        reasons.append(f"{mutation.file} would have a {error!r}")
    files = [test for test in mutation.tests if test.endswith(".py")]
    absent = [file for file in files if not (ROOT / file).is_file()]
    return (
        reasons
        + [f"there is no {file}" for file in absent]
        + ([] if files else ["it names no tests"])
    )


def test_a_mutation_changes_one_place_of_the_source_and_names_tests_that_are_there(
    tmp_path: Path,
) -> None:
    unfold(
        Path(
            shutil.copytree(
                ROOT / "txtopo", tmp_path / "txtopo", ignore=shutil.ignore_patterns("__pycache__")
            )
        )
    )
    assert {
        mutation.name: reasons for mutation in MUTATIONS if (reasons := misfits(mutation, tmp_path))
    } == {}, "mend tests/mutants"


BACKENDS = {"mariadb", "memory", "postgresql", "redis", "sqlite"}
"""Parameters of tests of stores, which no file of tests spells out."""


def searchable(*paths: Path) -> str:
    """All text of ``paths``, lower case, with an underscore for each run of other characters."""
    return re.sub(
        r"[^a-z0-9]+", "_", " ".join(path.read_text(encoding="utf-8") for path in paths).lower()
    )


CLAIMS = searchable(
    *sorted((ROOT / "txtopo/testing/contracts").glob("*.py")),
    *sorted((ROOT / "tests/wrong").glob("*.py")),
)


def unknown_words(mutation: Mutation) -> list[str]:
    """Words of the expression that selects tests, which no test has."""
    if "-k" not in mutation.tests:
        return []
    expression = mutation.tests[mutation.tests.index("-k") + 1]
    text = searchable(*(ROOT / test for test in mutation.tests if test.endswith(".py")))
    words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"} - BACKENDS
    return [word for word in words if word.lower() not in text and word.lower() not in CLAIMS]


def test_an_expression_that_selects_tests_names_tests_that_are_there() -> None:
    assert {
        mutation.name: unknown_words(mutation) for mutation in MUTATIONS if unknown_words(mutation)
    } == {}


def test_every_guard_can_be_removed_and_no_two_mutations_have_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert [guard.name for guard in GUARDS if not guard.mutations] == []
    assert [file for guard in GUARDS for file in guard.staged if not (ROOT / file).is_file()] == []


def test_the_guards_of_every_layer_are_among_them() -> None:
    named = {guard.name for guard in GUARDS}
    of_coordinators = {"lease", "epoch check", "generation check", "seal before apply"}
    of_stores = {"fence", "stamps", "take-back", "known stores", "one writer per key"}
    of_spark = {
        "required settings",
        "job check",
        "local checkpoint",
        "chunk agreement",
        "held-state fence",
        "zombie wait",
    }
    assert of_coordinators | of_stores | of_spark <= named
