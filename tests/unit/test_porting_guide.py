"""The porting guide is complete and true: every name in the guide exists, every public name is in
the guide, and every difference from Storm has its rule."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import txtopo
from txtopo import (
    StaleAttemptError,
    StateMismatchError,
    TopologyContext,
    TransactionAttempt,
    testing,
)
from txtopo.state.rotating import RotatingTransactionalState
from txtopo.topology import conf as confs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GUIDE, EXAMPLES, DIFFERENCES = "porting.md", "porting/examples.md", "porting/differences.md"


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def here_column() -> list[str]:
    """Every piece of inline code in the right column of the guide's tables "Storm | here"."""
    rows = re.findall(r"^\| .* \| (.*) \|$", without_fences(text_of(GUIDE)), flags=re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row)]


def resolve(dotted: str) -> Any:
    """What ``a.b.C.d`` names; ``AttributeError`` if it names nothing."""
    module, attributes = dotted, list[str]()
    while True:
        try:
            value: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
    for attribute in attributes:
        value = getattr(value, attribute)
    return value


# -- what it names exists ------------------------------------------------------------------------


def named_in_pages() -> list[str]:
    text = "".join(map(text_of, (GUIDE, EXAMPLES, DIFFERENCES, "committers.md")))
    return sorted(set(re.findall(r"`(txtopo(?:\.\w+)+)", text)))


@pytest.mark.parametrize("name", named_in_pages())
def test_every_name_of_the_guide_exists(name: str) -> None:
    assert resolve(name) is not None


def test_every_interface_of_the_guide_is_named_with_the_module_it_comes_from() -> None:
    table = text_of(GUIDE).partition("## Where is …?")[2].partition("```")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", table, flags=re.MULTILINE)[2:]
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"`txtopo\.", row[1])] == []


def instances() -> Mapping[str, Any]:
    """The objects behind the names in the guide's tables."""
    fields = txtopo.Fields("tx", "word")
    context = TopologyContext(
        "id", "generation", "bolt", 0, {"bolt": 2}, "commit", lambda name, factory: factory()
    )
    return {
        "tup": txtopo.Tuple,
        "fields": fields,
        "collector": txtopo.BatchOutputCollector,
        "context": context,
        "declarer": txtopo.OutputFieldsDeclarer,
        "builder": txtopo.TransactionalTopologyBuilder,
        "cluster": txtopo.LocalCluster,
        "run": txtopo.TopologyRun,
        "state": RotatingTransactionalState,
    }


def test_every_method_in_the_right_columns_exists() -> None:
    stand_for = instances()
    calls = [
        (name, method)
        for code in here_column()
        for name, method in re.findall(r"\b([a-z]+)\.(\w+)", code)
        if name in stand_for
    ]
    assert {name for name, _ in calls} >= {
        "tup",
        "collector",
        "context",
        "run",
        "cluster",
        "state",
        "fields",
    }
    assert [
        f"{name}.{method}" for name, method in calls if not hasattr(stand_for[name], method)
    ] == []


def test_the_memory_spouts_have_the_methods_the_guide_gives_them() -> None:
    calls = {method for code in here_column() for method in re.findall(r"^spout\.(\w+)", code)}
    assert calls == {"append", "set_disabled"}
    opaque: Any = resolve("txtopo.testing.OpaqueMemoryTransactionalSpout")
    assert all(hasattr(opaque, method) for method in calls)
    assert hasattr(testing.MemoryTransactionalSpout, "append")


# -- what exists it names ------------------------------------------------------------------------

INTERFACES = [
    name
    for name in txtopo.__all__
    if re.match(
        r"I[A-Z]\w*(Bolt|Spout|Committer)$|Base\w+$|\w+Spout(Coordinator|Emitter)$|\w+Declarer$|\w*OutputCollector$",
        name,
    )
]


@pytest.mark.parametrize("name", INTERFACES)
def test_every_interface_is_in_the_guide_with_its_methods(name: str) -> None:
    text = text_of(GUIDE)
    assert f"`txtopo.{name}`" in text
    methods = [
        method
        for method in vars(getattr(txtopo, name))
        if not method.startswith("_") and callable(getattr(getattr(txtopo, name), method))
    ]
    inner = {"Coordinator", "Emitter"}
    assert [
        method
        for method in methods
        if method not in inner and not re.search(rf"\b{method}\b", text)
    ] == []


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


GROUPINGS = [method for method in vars(txtopo.BoltDeclarer) if method.endswith("_grouping")]


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_every_grouping_is_shown_in_java_and_in_python(grouping: str) -> None:
    text = text_of(GUIDE)
    assert any(f".{camel(grouping)}(" in block for block in fences(text, "java"))
    assert any(f".{grouping}(" in block for block in fences(text, "python"))


@pytest.mark.parametrize("key", confs.STORM_KEYS)
def test_every_key_of_storms_that_is_understood_is_in_the_guide(key: str) -> None:
    assert f"`{key}`" in text_of(GUIDE)


def test_every_getter_of_a_tuple_is_in_the_guide() -> None:
    text = text_of(GUIDE)
    getters = [
        name
        for name in vars(txtopo.Tuple)
        if name.startswith("get_") and not name.endswith("_by_field")
    ]
    assert len(getters) > 8
    assert [name for name in getters if f"tup.{name}(" not in text] == []


def sections(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^(#{2,3} .*)$", text, flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def test_wherever_there_is_java_there_is_python_beside_it() -> None:
    with_java = [
        (title, body)
        for page in (GUIDE, EXAMPLES)
        for title, body in sections(text_of(page))
        if fences(body, "java")
    ]
    assert len(with_java) > 15
    assert [
        title
        for title, body in with_java
        if not fences(body, "python") and "```{literalinclude}" not in body
    ] == []


# -- the examples are the starters, in full ------------------------------------------------------

INCLUDE = re.compile(
    r"^```\{literalinclude\} (?P<path>\S+)\n(?P<options>(?::.*\n)*)```$", re.MULTILINE
)


def included_lines(starter: str) -> set[int]:
    """Numbers of the lines of ``starter`` that the page of examples includes; every include must
    match."""
    numbers: set[int] = set()
    source = (ROOT / "starter" / starter).read_text(encoding="utf-8")
    lines = source.splitlines()
    objects = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    for include in INCLUDE.finditer(text_of(EXAMPLES)):
        if Path(include["path"]).name != starter:
            continue
        assert (DOCS / EXAMPLES).parent.joinpath(
            include["path"]
        ).resolve() == ROOT / "starter" / starter
        options = dict(re.findall(r"^:([a-z-]+): (.*)$", include["options"], flags=re.MULTILINE))
        if "pyobject" in options:
            node = objects[options["pyobject"]]
            assert node.end_lineno is not None
            numbers.update(range(node.lineno, node.end_lineno + 1))
            continue
        first = next(number for number, line in enumerate(lines, 1) if options["start-at"] in line)
        last = len(lines)
        if "end-before" in options:
            last = next(
                number - 1
                for number, line in enumerate(lines, 1)
                if number > first and options["end-before"] in line
            )
        numbers.update(range(first, last + 1))
    return numbers


@pytest.mark.parametrize("starter", ["transactional_global_count.py", "transactional_words.py"])
def test_the_page_of_examples_has_every_line_of_both_starters(starter: str) -> None:
    lines = (ROOT / "starter" / starter).read_text(encoding="utf-8").splitlines()
    begin = lines.index("import os") + 1
    left_out = set(range(begin, len(lines) + 1)) - included_lines(starter)
    assert [lines[number - 1] for number in sorted(left_out) if lines[number - 1].strip()] == []


# -- differences ---------------------------------------------------------------------------------


def rules() -> dict[int, str]:
    """The text of every rule, by number."""
    parts = re.split(
        r"^\*\*R(\d+)\.\*\*",
        text_of("semantics.md").partition("## Which tests")[0],
        flags=re.MULTILINE,
    )
    return {int(number): body for number, body in zip(parts[1::2], parts[2::2], strict=True)}


def differences() -> list[tuple[str, ...]]:
    """The rows of the tables of differences: rule, Storm, here, why."""
    rows = re.findall(r"^\| (.*) \|$", text_of(DIFFERENCES), flags=re.MULTILINE)
    cells = [tuple(cell.strip() for cell in re.split(r" \| ", row)) for row in rows]
    return [row for row in cells if row[0] != "rule"]


def test_every_deliberate_difference_names_a_rule_that_exists_and_a_reason() -> None:
    rows = differences()
    assert len(rows) > 30
    for row in rows:
        assert len(row) == 4, row
        assert all(row), row
        assert re.fullmatch(r"R\d+", row[0]), row
        assert int(row[0][1:]) in rules(), row


def test_every_rule_that_departs_from_storm_is_among_the_differences() -> None:
    told = [int(row[0][1:]) for row in differences()]
    departing = {number: body.count("**+**") for number, body in rules().items() if "**+**" in body}
    assert len(departing) > 20
    assert {
        number: times for number, times in departing.items() if told.count(number) < times
    } == {}


def test_the_differences_are_in_the_order_of_the_rules() -> None:
    numbers = [
        [int(rule) for rule in re.findall(r"^\| R(\d+) ", body, flags=re.MULTILINE)]
        for _, body in sections(text_of(DIFFERENCES))
    ]
    assert [those for those in numbers if those != sorted(those)] == []


# -- the committer that is shown is safe ---------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """The bolts of the page on hand-written committers."""
    names: dict[str, Any] = {"__name__": "the page"}
    for code in fences(text_of("committers.md"), "python")[:2]:
        exec(compile(code, "docs/committers.md", "exec"), names)
    return names


class Bank:
    """A bank, and the commits that reach the bank: of any bolt, task, attempt and generation, in
    any order."""

    def __init__(self, shown: Mapping[str, Any], path: Path) -> None:
        self.shown, self.path = shown, path
        self.connection: sqlite3.Connection = shown["open_bank"](path)

    def commit(
        self,
        bolt: str,
        attempt: tuple[int, int],
        paid: Mapping[str, int],
        task: int = 0,
        generation: str = "g",
    ) -> None:
        committer = self.shown[bolt](self.path)
        context = TopologyContext(
            "bank",
            generation,
            "balance",
            task,
            {"balance": 2},
            "commit",
            lambda name, factory: self.connection,
        )
        committer.prepare({}, context, None, TransactionAttempt(*attempt))
        for account, cents in paid.items():
            committer.execute({"account": account, "cents": cents})
        committer.finish_batch()

    @property
    def balances(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT account, cents FROM balance ORDER BY account"))


@pytest.fixture
def bank(shown: dict[str, Any], tmp_path: Path) -> Iterator[Bank]:
    opened = Bank(shown, tmp_path / "bank.db")
    with contextlib.closing(opened.connection):
        yield opened


@pytest.mark.rule(29)
def test_the_classic_counts_twice_when_a_zombie_writes_and_the_safe_one_does_not(
    bank: Bank,
) -> None:
    bank.commit("Balance", (1, 0), {"ann": 5})
    bank.commit("Balance", (2, 0), {"ann": 3})
    with pytest.raises(
        StaleAttemptError, match=r"fenced at attempt 2:0; attempt 1:0 may not write"
    ):
        bank.commit("Balance", (1, 0), {"ann": 5})
    assert bank.balances == {"ann": 8}
    bank.connection.execute("DELETE FROM balance")
    bank.commit("ClassicBalance", (1, 0), {"ann": 5})
    bank.commit("ClassicBalance", (2, 0), {"ann": 3})
    bank.commit("ClassicBalance", (1, 0), {"ann": 5})
    assert bank.balances == {"ann": 13}


@pytest.mark.rule(29, 31)
def test_the_safe_committer_takes_back_writes_of_any_task_of_the_failed_attempt(bank: Bank) -> None:
    bank.commit("Balance", (1, 0), {"ann": 1}, task=0)
    bank.commit("Balance", (1, 0), {"bob": 2}, task=1)
    bank.commit("Balance", (2, 0), {"ann": 10}, task=0)
    bank.commit("Balance", (2, 0), {"bob": 20, "dan": 30}, task=1)
    bank.commit("Balance", (2, 1), {"ann": 11}, task=0)
    assert bank.balances == {"ann": 12, "bob": 2}, (
        "what the failed attempt wrote is there, in the new attempt's other task"
    )
    with pytest.raises(StaleAttemptError):
        bank.commit("Balance", (2, 0), {"bob": 20, "dan": 30}, task=1)
    bank.commit("Balance", (2, 1), {}, task=1)
    bank.commit("Balance", (2, 1), {"ann": 11}, task=0)
    bank.commit("Balance", (3, 0), {"ann": 100, "dan": 30})
    assert bank.balances == {"ann": 112, "bob": 2, "dan": 30}


@pytest.mark.rule(27)
def test_the_safe_committer_refuses_another_generation_and_a_bank_that_was_emptied(
    bank: Bank,
) -> None:
    bank.commit("Balance", (1, 0), {"ann": 1})
    with pytest.raises(StateMismatchError, match="generation other wants to write"):
        bank.commit("Balance", (2, 0), {"ann": 1}, generation="other")
    bank.connection.execute("DELETE FROM fence")
    with pytest.raises(StateMismatchError):
        bank.commit("Balance", (2, 0), {"ann": 1})
    assert bank.balances == {"ann": 1}
    assert not bank.connection.in_transaction, "a refused commit left its transaction open"
