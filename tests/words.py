"""A thermometer for prose: how often words refer to something else instead of naming it, how often
*of* joins nouns, and how often a semicolon joins sentences.

``python -m tests.words [PATH …]`` prints the shares per folder; ``--show N`` adds, for each measure,
the N worst sentences with their places. Docstrings, comments, messages and Markdown pages count;
code, tables, headings and quotations of output do not.
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
_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_LINK_ADDRESS = re.compile(r"^\[[^\]]+\]: \S+$", re.MULTILINE)
_BAD_EXAMPLE = re.compile(r"^> Before:.*(?:\n> .*)*", re.MULTILINE)


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
    free: list[Sentence] = field(default_factory=list)
    dense: list[Sentence] = field(default_factory=list)
    of: list[Sentence] = field(default_factory=list)
    semicolons: list[Sentence] = field(default_factory=list)

    def add(self, sentence: Sentence) -> None:
        """Count ``sentence``, if it is long enough."""
        words = sentence.words
        if sentence.text.endswith(";"):
            self.semicolons.append(sentence)
        if len(words) < WORDS_MIN:
            return
        self.sentences += 1
        self.words += len(words)
        self.referring += sum(word in REFERRING for word in words)
        self.free += [sentence] * sum(word in FREE_RELATIVES for word in words)
        self.of += [sentence] * words.count("of")
        if sentence.density >= DENSE:
            self.dense.append(sentence)

    @property
    def referring_share(self) -> float:
        """Referring words among all words."""
        return self.referring / max(self.words, 1)

    @property
    def free_share(self) -> float:
        """Free relatives among all words."""
        return len(self.free) / max(self.words, 1)

    @property
    def dense_share(self) -> float:
        """Dense sentences among all sentences."""
        return len(self.dense) / max(self.sentences, 1)

    @property
    def of_share(self) -> float:
        """*of* among all words."""
        return len(self.of) / max(self.words, 1)

    @property
    def semicolon_share(self) -> float:
        """Semicolons among all sentences."""
        return len(self.semicolons) / max(self.sentences, 1)

    def worst(self, count: int) -> dict[str, list[Sentence]]:
        """By measure, the ``count`` worst sentences."""
        by_of = sorted(
            dict.fromkeys(self.of), key=lambda each: -each.words.count("of") / len(each.words)
        )
        by_density = sorted(self.dense, key=lambda each: -each.density)
        lists = {
            "dense": by_density,
            "free": list(dict.fromkeys(self.free)),
            "of": by_of,
            ";": self.semicolons,
        }
        return {name: sentences[:count] for name, sentences in lists.items()}


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


_CODE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|WITH|MERGE|LOCK|SET|SHOW|FROM|WHERE|ON|"
    r"local|import|from|def)\b|redis\.call|</"
)


def messages_of_source(text: str) -> Iterator[tuple[int, str]]:
    """Texts for people: literals of some words that are neither docstrings nor SQL or other code. A
    value in an f-string is no word."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = [
                part.value if isinstance(part, ast.Constant) else "`…`" for part in node.values
            ]
            message = "".join(map(str, values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            message = node.value
        else:
            continue
        is_part = isinstance(parents[node], ast.Expr | ast.JoinedStr)
        if not is_part and message.count(" ") >= WORDS_MIN - 1 and not _CODE.search(message):
            yield node.lineno, message.replace("\n", "\n\n")


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and list items of a Markdown page, without code, tables, headings, comments, link
    addresses, and quotations that begin with *Before:*."""
    text = re.sub(
        r"^(```|~~~)[^\n]*\n.*?^\1",
        lambda match: "\n" * match.group(0).count("\n"),
        text,
        flags=re.S | re.M,
    )
    text = re.sub(
        r"<!-- (?:begin|measured) .*?<!-- end [^\n]*-->|<!--.*?-->",
        lambda match: "\n" * match.group(0).count("\n"),
        text,
        flags=re.S,
    )
    text = _BAD_EXAMPLE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    text = _LINK_ADDRESS.sub("", text)
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        stripped = line.strip().removeprefix(">").strip()
        item = re.match(r"([-*]|\d+\.)\s", stripped)
        if not stripped or item or stripped.startswith(("#", "|", ":::", "$ ")):
            if block:
                yield first, " ".join(block)
            block = []
        if stripped and not stripped.startswith(("#", "|", ":::", "$ ")):
            first = first if block else number
            block.append(stripped)


def sentences_of(path: Path) -> Iterator[Sentence]:
    """The sentences of a Python file or of a Markdown page."""
    text = path.read_text(encoding="utf-8")
    parts = list(prose_of_source(text) if path.suffix == ".py" else prose_of_page(text))
    if path.is_relative_to(ROOT / "txtopo"):
        parts += messages_of_source(text)
    for line, prose in parts:
        prose = re.sub(r"::\n\n(?:[ \t]+\S[^\n]*\n?|\n)+", "\n\n", prose)
        for part in _SENTENCE.split(_LINK.sub(r"\1", prose)):
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
    """Print the table, and the worst sentences if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    parser.add_argument("paths", nargs="*", default=FOLDERS)
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="and the N worst sentences"
    )
    options = parser.parse_args()
    print(f"{'':32} sentences  referring   free   dense     of      ;")
    for folder in options.paths:
        result = measure(files_under(folder))
        shares = f"{result.referring_share:9.1%} {result.free_share:7.2%} {result.dense_share:6.1%}"
        print(
            f"{folder!s:32} {result.sentences:9,} {shares} {result.of_share:6.1%} {result.semicolon_share:6.1%}"
        )
    for name, sentences in measure(files_under(*options.paths)).worst(options.show).items():
        for sentence in sentences:
            print(f"{name}: {sentence.path.relative_to(ROOT)}:{sentence.line}: {sentence.text}")


if __name__ == "__main__":
    main()
