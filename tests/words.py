"""A thermometer for prose: the share of words that refer to something else instead of naming it.

``python -m tests.words [PATH …]`` prints, per folder, sentences, referring words, free relatives
and dense sentences; ``--show N`` adds the N densest sentences with their places. Docstrings,
comments and Markdown pages count; code, tables, headings and quotations of output do not.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("txtopo", "tests", "bench", "starter", "docs")

_PRONOUNS = "it its itself that this these those it they them their one ones other others another such so same what which"
_NOBODY = "who whom whose whoever whatever whichever somebody someone anybody nobody everybody something anything nothing everything"
REFERRING = frozenset(f"{_PRONOUNS} {_NOBODY}".split(" "))
"""Words that stand for a thing named elsewhere."""

FREE_RELATIVES = frozenset(
    [
        "who",
        "whom",
        "whoever",
        "what",
        "whatever",
        "whichever",
        "nobody",
        "somebody",
        "someone",
        "anybody",
        "everybody",
    ]
)
"""Words in the place of a noun that the reader must supply."""

WORDS_MIN = 6
"""Shorter sentences are no measure of anything."""
DENSE = 0.25
"""A sentence is dense when at least this share of its words refers."""

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")
_INLINE_CODE = re.compile(r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`|https?://\S+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of prose, and its place."""

    path: Path
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Its words, in lower case; code is no word."""
        return [word.lower() for word in _WORD.findall(self.text)]

    @property
    def density(self) -> float:
        """The share of referring words among its words."""
        return sum(word in REFERRING for word in self.words) / len(self.words)


@dataclass(slots=True)
class Measure:
    """Counts over many sentences."""

    sentences: int = 0
    words: int = 0
    referring: int = 0
    free: int = 0
    dense: list[Sentence] = field(default_factory=list)

    def add(self, sentence: Sentence) -> None:
        """Count ``sentence``, if it is long enough."""
        words = sentence.words
        if len(words) < WORDS_MIN:
            return
        self.sentences += 1
        self.words += len(words)
        self.referring += sum(word in REFERRING for word in words)
        self.free += sum(word in FREE_RELATIVES for word in words)
        if sentence.density >= DENSE:
            self.dense.append(sentence)

    @property
    def referring_share(self) -> float:
        """Referring words among all words."""
        return self.referring / max(self.words, 1)

    @property
    def free_share(self) -> float:
        """Free relatives among all words."""
        return self.free / max(self.words, 1)

    @property
    def dense_share(self) -> float:
        """Dense sentences among all sentences."""
        return len(self.dense) / max(self.sentences, 1)


def prose_of_source(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, also those of attributes, and runs of comments, each with its line."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for statement in (
            getattr(node, "body", None) or []
            if not isinstance(node, ast.Lambda | ast.IfExp)
            else []
        ):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and block:
            yield first, " ".join(block)
            block = []
        first = first if block else token.start[0]
        last = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield first, " ".join(block)


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and list items of a Markdown page, without code, tables, headings and comments."""
    text = re.sub(
        r"^(```|~~~)[^\n]*\n.*?^\1",
        lambda match: "\n" * match.group(0).count("\n"),
        text,
        flags=re.S | re.M,
    )
    text = re.sub(
        r"<!-- begin .*?<!-- end [^\n]*-->|<!--.*?-->",
        lambda match: "\n" * match.group(0).count("\n"),
        text,
        flags=re.S,
    )
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        stripped = line.strip()
        item = re.match(r"([-*]|\d+\.)\s", stripped)
        if not stripped or item or stripped.startswith(("#", "|", ">", ":::", "$ ")):
            if block:
                yield first, " ".join(block)
            block = []
        if stripped and not stripped.startswith(("#", "|", ":::", "$ ")):
            first = first if block else number
            block.append(stripped)


def sentences_of(path: Path) -> Iterator[Sentence]:
    """The sentences of a Python file or of a Markdown page."""
    text = path.read_text(encoding="utf-8")
    for line, prose in prose_of_source(text) if path.suffix == ".py" else prose_of_page(text):
        prose = re.sub(r"::\n\n(?:[ \t]+\S[^\n]*\n?|\n)+", "\n\n", prose)
        for part in _SENTENCE.split(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)):
            yield Sentence(path, line, " ".join(_INLINE_CODE.sub(" ", part).split()))


def files_under(*folders: str | Path) -> list[Path]:
    """Every Python file and Markdown page under ``folders``, which are relative to the tree."""
    chosen: list[Path] = []
    for folder in folders:
        path = ROOT / folder
        below = [path] if path.is_file() else sorted(path.rglob("*"))
        chosen += [
            each for each in below if each.suffix in (".py", ".md") and "_build" not in each.parts
        ]
    return chosen


def measure(paths: Iterable[Path]) -> Measure:
    """Everything in ``paths``, measured."""
    total = Measure()
    for path in paths:
        for sentence in sentences_of(path):
            total.add(sentence)
    return total


def main() -> None:
    """Print the table, and the densest sentences if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    parser.add_argument("paths", nargs="*", default=FOLDERS)
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="show the N densest sentences"
    )
    parser.add_argument(
        "--free", action="store_true", help="show each sentence with a free relative"
    )
    options = parser.parse_args()
    print(f"{'':32} sentences  referring   free   dense")
    for folder in options.paths:
        result = measure(files_under(folder))
        shares = f"{result.referring_share:9.1%} {result.free_share:7.2%} {result.dense_share:6.1%}"
        print(f"{folder!s:32} {result.sentences:9,} {shares}")
    everything = measure(files_under(*options.paths))
    for sentence in sorted(everything.dense, key=lambda each: -each.density)[: options.show]:
        print(f"{sentence.path.relative_to(ROOT)}:{sentence.line}: {sentence.text}")
    if options.free:
        for path in files_under(*options.paths):
            for sentence in sentences_of(path):
                if len(sentence.words) >= WORDS_MIN and FREE_RELATIVES & set(sentence.words):
                    print(f"{path.relative_to(ROOT)}:{sentence.line}: {sentence.text}")


if __name__ == "__main__":
    main()
