"""The catalogue of mutations fits the source: ``make mutants`` takes minutes, and a quick test
should find a misfit first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.guards import GUARDS
from tests.mutants.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_one_place_of_the_source_and_names_tests_that_are_there(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, f"{mutation.file} has moved on; mend tests/mutants"
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")
    files = [test for test in mutation.tests if test.endswith(".py")]
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


BACKENDS = {"mariadb", "memory", "postgresql", "redis", "sqlite"}
"""Parameters of tests of stores, which no file of tests spells out."""


def searchable(*paths: Path) -> str:
    """All text of ``paths``, lower case, with an underscore for each run of other characters."""
    return re.sub(r"[^a-z0-9]+", "_", " ".join(path.read_text(encoding="utf-8") for path in paths).lower())


CLAIMS = searchable(*sorted((ROOT / "txtopo/testing/contracts").glob("*.py")), *sorted((ROOT / "tests/wrong").glob("*.py")))


@pytest.mark.parametrize("mutation", [each for each in MUTATIONS if "-k" in each.tests], ids=lambda mutation: mutation.name)
def test_an_expression_that_selects_tests_names_tests_that_are_there(mutation: Mutation) -> None:
    expression = mutation.tests[mutation.tests.index("-k") + 1]
    text = searchable(*(ROOT / test for test in mutation.tests if test.endswith(".py")))
    words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"} - BACKENDS
    assert [word for word in words if word.lower() not in text and word.lower() not in CLAIMS] == []


def test_every_guard_can_be_removed_and_no_two_mutations_have_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert [guard.name for guard in GUARDS if not guard.mutations] == []
    assert [file for guard in GUARDS for file in guard.staged if not (ROOT / file).is_file()] == []


def test_the_guards_of_every_layer_are_among_them() -> None:
    named = {guard.name for guard in GUARDS}
    of_coordinators = {"lease", "epoch check", "generation check", "seal before apply"}
    of_stores = {"fence", "stamps", "take-back", "known stores", "one writer per key"}
    of_spark = {"required settings", "job check", "local checkpoint", "chunk agreement", "held-state fence", "zombie wait"}
    assert of_coordinators | of_stores | of_spark <= named
