"""Prose names its subject: the shares of words that refer elsewhere are bounded, per folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import words

FREE_MAX = 0.003
"""Free relatives among all words."""
DENSE_MAX = 0.03
"""Dense sentences among all sentences."""
OF_MAX = 0.025
"""*of* among all words."""
SEMICOLONS_MAX = 0.05
"""Semicolons among all sentences."""

NOUN_OF_A_VERB = re.compile(
    r"^(?:The |A |An )?(?:[\w-]+ )?"
    r"(?!grouping|setting|mapping|encoding|recording|string|beginning)"
    r"(?:\w+ings?|judgement|death|way|work|choice|search|comparison|life|knowledge|diagnosis|removal)"
    r" (?:of|over) ",
    re.IGNORECASE,
)
"""A first line such as "The judgement over a task": a verb says it shorter."""
VAGUE_NAMES = frozenset(
    {"made", "taken", "said", "given", "asked", "begun", "held", "seen", "told", "met", "known"}
    | {"wanted", "touched", "forgotten", "moved", "what", "inside", "beside", "without", "anew"}
)
"""Names of functions that leave the reader to guess the noun."""

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def folders() -> dict[str, list[Path]]:
    """The files that users read, by folder."""
    by_folder: dict[str, list[Path]] = {}
    for path in words.files_under("txtopo", "docs", *PAGES):
        by_folder.setdefault(str(path.parent.relative_to(words.ROOT)), []).append(path)
    return by_folder


@pytest.mark.parametrize("folder", folders())
def test_texts_for_users_name_their_subjects_in_short_sentences(folder: str) -> None:
    result = words.measure(folders()[folder])
    assert result.free_share <= FREE_MAX, f"python -m tests.words {folder} --show 40"
    assert result.dense_share <= DENSE_MAX, f"python -m tests.words {folder} --show 40"
    assert result.of_share <= OF_MAX, f"python -m tests.words {folder} --show 40"
    assert result.semicolon_share <= SEMICOLONS_MAX, f"python -m tests.words {folder} --show 40"


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["tests", "bench", "starter"])
def test_prose_for_contributors_names_its_subjects(folder: str) -> None:
    result = words.measure(words.files_under(folder))
    assert result.sentences > 0
    assert result.free_share <= FREE_MAX, f"python -m tests.words {folder} --show 40"
    assert result.dense_share <= DENSE_MAX, f"python -m tests.words {folder} --show 40"


@pytest.mark.thorough
def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    wrong = []
    for path in words.files_under("txtopo"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            first = re.split(r"[.:;]\s|\n\n", ast.get_docstring(node) or "")[0]
            too_many = isinstance(node, ast.Module) and len(re.findall(r"\bof\b", first)) > 1
            if NOUN_OF_A_VERB.match(first) or too_many:
                wrong.append(f"{path.relative_to(words.ROOT)}:{getattr(node, 'lineno', 1)} {first}")
    assert wrong == []


@pytest.mark.thorough
def test_names_of_functions_say_a_verb_or_a_noun() -> None:
    vague = [
        f"{path.relative_to(words.ROOT)}:{node.lineno} {node.name}"
        for path in words.files_under("txtopo")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.strip("_") in VAGUE_NAMES
    ]
    assert vague == []


def test_referring_words_and_free_relatives_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Whoever wants it gets what nobody else has.\n\nA task sends its rows to the next level of the plan.\n"
    )
    result = words.measure([page])
    assert (result.sentences, result.words, result.referring, len(result.free)) == (2, 20, 5, 3)
    assert [sentence.text for sentence in result.dense] == [
        "Whoever wants it gets what nobody else has."
    ]


def test_code_tables_and_generated_parts_are_no_prose(tmp_path: Path) -> None:
    dense = "it is what it is and that is that"
    page = tmp_path / "page.md"
    page.write_text(
        f"```\n{dense}\n```\n\n| it | {dense} |\n\n<!-- begin x -->\n{dense}\n<!-- end x -->\n"
        f"\n<!-- measured x -->\n- {dense}\n<!-- end measured -->\n"
    )
    assert words.measure([page]).sentences == 0


def test_bad_examples_and_addresses_of_links_are_no_prose_and_texts_of_links_are(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "> Before: It is what it is, and that\n> is that for whom it is.\n>\n"
        "> After: The task opens its store\n> [before any write][store].\n\n"
        "[store]: https://example.org/what-it-is/that-is-it.html\n"
    )
    assert [sentence.text for sentence in words.sentences_of(page) if sentence.words] == [
        "After:",
        "The task opens its store before any write.",
    ]


def test_docstrings_and_comments_are_prose(tmp_path: Path) -> None:
    docstrings = (
        '"""The store of a task writes rows."""\n\nX = 1\n"""The bound of rows in one task."""\n'
    )
    source = tmp_path / "source.py"
    source.write_text(
        f"{docstrings}# The driver asks for\n# rows of one task.\nY = 'it is what it is, and that is that'\n"
    )
    assert [(each.line, len(each.words)) for each in words.sentences_of(source)] == [
        (1, 7),
        (4, 7),
        (5, 8),
    ]


def test_of_and_semicolons_are_counted_and_messages_are_prose(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    text = "the name of the bolt of topology {name} is taken; give the bolt a name that is free"
    source.write_text(
        f'raise Error(f"{text}")\nrun("SELECT value FROM rows WHERE key = 1 OR key = 2")\n'
    )
    (message,) = words.messages_of_source(source.read_text())
    assert message == (1, text.replace("{name}", "`…`"))
    source.write_text(f'"""{text}"""\n')
    result = words.measure([source])
    assert (len(result.of), len(result.semicolons), result.sentences) == (2, 1, 2)
