"""The style, enforced by reading the sources: rules that a linter does not know."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import starter
import txtopo
from tests.tiers import FOLDERS
from txtopo import UsageError, demo, testing
from txtopo.command import cli, export_commands

ROOT = Path(__file__).resolve().parents[2]
HELPERS = ("processes", "servers", "topologies", "wrong")
"""Folders of helpers for tests; tests/README.md lists their contents."""
PACKAGE = sorted((ROOT / "txtopo").rglob("*.py"))
SOURCES = [*PACKAGE, *sorted((ROOT / "starter").rglob("*.py"))]
BENCH = sorted((ROOT / "bench").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

STATEMENTS_MAX = 300
METHODS_MAX = 25
DUMPING_GROUNDS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
PUBLIC = frozenset({*txtopo.__all__, *testing.__all__})
"""The names that users import."""
VAGUE_NAMES = frozenset({"found", "given", "made", "mine", "there", "what", "which"})
"""Names without a word about the value: a variable is named after the thing."""
QUESTIONS = frozenset({"What", "Why", "Whether", "Who", "Whose", "How", "Where", "Which", "When"})
REGISTRIES = frozenset(
    {
        "txtopo/__init__.py",
        "txtopo/connectors/files/__init__.py",
        "txtopo/connectors/files/file_ledger.py",
        "txtopo/connectors/files/sink.py",
        "txtopo/connectors/files/storage.py",
        "txtopo/connectors/kafka/__init__.py",
        "txtopo/connectors/sql/ledger.py",
        "txtopo/dataplane/column_runs.py",
        "txtopo/exports/__init__.py",
        "txtopo/exports/linked.py",
        "txtopo/exports/postgres.py",
        "txtopo/spark/daemon.py",
        "txtopo/spark/session.py",
        "txtopo/stores/export.py",
        "txtopo/stores/redis/store.py",
        "txtopo/stores/servers/store.py",
        "txtopo/testing/__init__.py",
    }
)
"""Modules that import parts of the package by name, when the parts are needed."""
HEAVY = ("pyspark", "kazoo", "pydantic", "pyarrow")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """The trees of all sources are millions of objects, which the garbage collector would look at
    again and again."""
    gc.disable()
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()
    gc.enable()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def calls_of(node: ast.AST, *functions: str) -> list[ast.Call]:
    return [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in functions
    ]


def statements_of(path: Path) -> int:
    """How many there are, without docstrings."""
    statements = [node for node in nodes_of(path) if isinstance(node, ast.stmt)]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in statements
    )


def test_a_module_is_no_longer_than_one_idea_needs() -> None:
    counts = {named(path): statements_of(path) for path in [*SOURCES, *BENCH]}
    too_long = {name: count for name, count in counts.items() if count > STATEMENTS_MAX}
    assert too_long == {}, "split them where the second idea begins"


def test_a_class_has_no_more_methods_than_one_idea_needs() -> None:
    counts = {
        f"{named(path)}: {node.name}": sum(isinstance(each, ast.FunctionDef) for each in node.body)
        for path in [*PACKAGE, *BENCH]
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    }
    too_many = {name: count for name, count in counts.items() if count > METHODS_MAX}
    assert too_many == {}, "give the second idea a class of its own"


def test_every_module_says_in_its_docstring_what_it_is_for() -> None:
    assert [
        named(path)
        for path in [*SOURCES, *BENCH, *TESTS]
        if tree_of(path).body and not (ast.get_docstring(tree_of(path)) or "").strip()
    ] == []


def test_every_public_class_and_function_of_the_package_and_the_benchmark_has_a_docstring() -> None:
    silent = [
        f"{named(path)}: {node.name}"
        for path in [*PACKAGE, *BENCH]
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert silent == []


def public_parameters(path: Path) -> set[int]:
    """Identities of the parameters of the functions and classes in ``__all__``, without private
    methods. Users pass public parameters by name, so a public parameter keeps its name."""
    if path not in PACKAGE:
        return set()
    public = [
        node
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in PUBLIC
    ]
    members = [
        member
        for node in public
        for member in (node.body if isinstance(node, ast.ClassDef) else [node])
    ]
    functions = [member for member in members if isinstance(member, ast.FunctionDef)]
    called = [
        function
        for function in functions
        if not function.name.startswith("_") or function.name == "__init__"
    ]
    return {
        id(parameter)
        for function in called
        for parameter in ast.walk(function.args)
        if isinstance(parameter, ast.arg)
    }


def bound_names(path: Path) -> list[tuple[str, int]]:
    """Variables and parameters of the functions of a module, each with its line, without public
    parameters."""
    functions = [node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    below = {id(node): node for function in functions for node in ast.walk(function)}
    for parameter in public_parameters(path):
        del below[parameter]
    bound = [
        (node.id, node.lineno)
        for node in below.values()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return bound + [(node.arg, node.lineno) for node in below.values() if isinstance(node, ast.arg)]


def test_a_variable_is_named_after_its_value() -> None:
    vague = [
        f"{named(path)}:{line}: {name}"
        for path in [*SOURCES, *BENCH, *TESTS]
        for name, line in bound_names(path)
        if name in VAGUE_NAMES
    ]
    assert vague == [], "name the thing: row, plan, stamp, arguments"


def test_the_first_line_of_a_module_is_no_question() -> None:
    paths = [path for path in [*SOURCES, *BENCH, *TESTS] if tree_of(path).body]
    first_words = {
        named(path): (ast.get_docstring(tree_of(path)) or "-").split()[0] for path in paths
    }
    questions = {
        name: word for name, word in first_words.items() if re.split(r"\W", word)[0] in QUESTIONS
    }
    assert questions == {}, "say what the module is or does: a noun phrase or a verb"


def test_no_module_or_folder_is_a_dumping_ground() -> None:
    assert [
        named(path)
        for path in [*SOURCES, *BENCH, *TESTS]
        if not DUMPING_GROUNDS.isdisjoint(path.relative_to(ROOT).with_suffix("").parts)
    ] == []


def test_nothing_is_imported_with_a_star() -> None:
    starred = [
        named(path)
        for path in [*SOURCES, *BENCH, *TESTS]
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]
    assert starred == []


def modules_in_strings(tree: ast.AST) -> list[str]:
    """The modules of the package that strings in ``tree`` name. An f-string, or a relative name,
    counts as the argument of an import only."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and re.fullmatch(r"txtopo(\.\w+)+", str(node.value)):
            path = ROOT / str(node.value).replace(".", "/")
            if path.is_dir() or path.with_suffix(".py").is_file():
                names.append(str(node.value))
        elif isinstance(node, ast.Call) and node.args and "import" in ast.dump(node.func):
            name = ast.unparse(node.args[0]).strip("f'")
            if re.match(r"txtopo\.[\w.]*{|\.", name):
                names.append(name)
    return names


def test_only_registries_import_the_package_by_a_string_and_nothing_above() -> None:
    """The contract "Imports only go down" does not see ``import_module("txtopo.…")``."""
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rank = {
        name.strip(" ()"): number
        for number, layer in enumerate(layers)
        for name in layer.split("|")
    }
    by_string = {named(path): modules_in_strings(tree_of(path)) for path in PACKAGE}
    assert {name for name, modules in by_string.items() if modules} == REGISTRIES
    for name in REGISTRIES - {"txtopo/__init__.py"}:
        own = ".".join(name.split("/")[:2])
        for module in by_string[name]:
            package = ".".join(module.split(".")[:2])
            assert package == own or rank[package] > rank[own], f"{name}: {module}"


def test_the_contracts_that_name_connectors_name_all() -> None:
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    folders = {module_of(path) for path in (ROOT / "txtopo" / "connectors").glob("*/__init__.py")}
    named_in = [
        folders & {*each.get("modules", ()), *each.get("forbidden_modules", ())}
        for each in contracts
    ]
    assert [names for names in named_in if names] == [folders, folders]


@pytest.mark.parametrize(
    "source",
    [
        'LAZY = {"compile": "txtopo.plan"}',
        'import_module(f"txtopo.stores.{name}")',
        'import_module(".plan", "txtopo")',
    ],
)
def test_a_module_in_a_string_is_seen(source: str) -> None:
    assert len(modules_in_strings(ast.parse(source))) == 1


def test_pythons_own_hash_decides_nothing() -> None:
    deciding: list[str] = []
    for path in PACKAGE:
        dunders = [
            node
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        ]
        allowed = {id(call) for dunder in dunders for call in calls_of(dunder, "hash")}
        deciding.extend(
            f"{named(path)}:{call.lineno}"
            for call in calls_of(tree_of(path), "hash")
            if id(call) not in allowed
        )
    assert deciding == [], (
        "hash() differs from process to process: use the key encoding of topology.grouping"
    )


def test_no_work_is_left_as_a_note() -> None:
    assert [
        named(path)
        for path in [*SOURCES, *BENCH, *TESTS]
        if re.search(r"#\s*(TODO|FIXME|XXX|HACK)\b", text_of(path))
    ] == []


def test_no_test_sleeps() -> None:
    tests = [path for path in TESTS if path.name.startswith("test_")]
    sleeping = [
        f"{named(path)}:{call.lineno}"
        for path in tests
        for call in calls_of(tree_of(path), "time.sleep", "sleep")
    ]
    assert sleeping == [], "wait for a condition, with a bound"


def test_every_folder_of_tests_sets_a_mark() -> None:
    parts = [path.relative_to(ROOT / "tests").parts for path in TESTS]
    assert {folder for folder, *below in parts if below} <= {*FOLDERS, *HELPERS, "mutants", "soak"}


# -- what is imported, and when --------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "txtopo",
        "txtopo.stores",
        "txtopo.testing",
        "txtopo.connectors.files",
        "txtopo.dataplane.slot",
        "txtopo.plan.compiler",
    ],
)
def test_modules_for_executors_import_neither_pyspark_nor_kazoo_nor_pydantic_nor_pyarrow(
    module: str,
) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_all_names_in_all_can_be_imported() -> None:
    with_all = [module_of(path) for path in PACKAGE if "\n__all__ = [" in text_of(path)]
    assert "txtopo" in with_all
    for name in with_all:
        module = importlib.import_module(name)
        assert [public for public in module.__all__ if not hasattr(module, public)] == [], name
        assert len(set(module.__all__)) == len(module.__all__), name


def test_only_modules_that_give_names_of_others_have_all() -> None:
    """Any other module's public names are those without an underscore."""
    idle = []
    for path in PACKAGE:
        if path.name != "__init__.py" and "\n__all__ = [" in text_of(path):
            names = importlib.import_module(module_of(path)).__all__
            imported = {
                alias.asname or alias.name
                for node in tree_of(path).body
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            if not imported & set(names):
                idle.append(named(path))
    assert idle == []


def test_every_public_name_of_txtopo_is_in_all() -> None:
    public = {
        name
        for name, value in vars(txtopo).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("txtopo")
    }
    assert "TransactionAttempt" in public
    assert public - set(txtopo.__all__) == set()


def test_a_name_that_txtopo_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = txtopo.nothing


def test_the_starters_import_public_names_only() -> None:
    assert starter.__doc__
    for path in [*sorted((ROOT / "starter").glob("*.py")), demo.FILE]:
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module == "txtopo":
                assert {alias.name for alias in node.names} <= set(txtopo.__all__), named(path)


def typed_in(path: Path) -> Iterator[tuple[str, str]]:
    """The commands between backticks in the texts of ``path``, each with the line where its text
    begins. A field of an f-string becomes a word."""
    words = {"action": "adopt", "place": "kafka://host:9092 --topology words"}
    nodes = nodes_of(path)
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else words.get(ast.unparse(part.value), "7")
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in parts else node.value
        else:
            continue
        for command in re.findall(r"(?<!`)`txtopo (\w[^`]*)`(?!`)", text):
            yield f"{named(path)}:{node.lineno}", command


def test_the_commands_in_messages_and_help_can_be_typed() -> None:
    parser = cli._parser()
    commands, refused = 0, list[str]()
    for place, command in (each for path in PACKAGE for each in typed_in(path)):
        commands += 1
        try:
            parser.parse_args(export_commands.completed(shlex.split(command)))
        except UsageError as error:
            refused.append(f"{place}: txtopo {command}: {error}")
    assert commands > 50
    assert refused == []
