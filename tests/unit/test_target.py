"""TARGET on the command line: the topology it names, and the message when it names none."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from txtopo import UsageError
from txtopo.command import target
from txtopo.errors import ConfigError, InvalidTopologyError
from txtopo.topology import pickling
from txtopo.topology.graph import TopologyGraph

WORDS = """
from txtopo import BaseBatchBolt, Config, TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout


class Swallow(BaseBatchBolt):
    def execute(self, tup):
        pass


def builder_of(id="words", parallelism=1):
    builder = TransactionalTopologyBuilder(id, "spout", MemoryTransactionalSpout({0: [("a",)]}, ["word"], 1))
    builder.set_bolt("swallow", Swallow(), parallelism).shuffle_grouping("spout")
    return builder


def needs_a_path(path):
    return builder_of(path)


class Registry:
    words = builder_of("registered")


builder = builder_of("built")
topology = builder_of().build_topology()
number = 5
conf = Config(max_spout_pending=7)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a file, a package and a module; changes that loading makes to this
    process are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "shop_of_words").mkdir()
    (tmp_path / "shop_of_words" / "__init__.py").write_text("")
    (tmp_path / "shop_of_words" / "orders.py").write_text(WORDS)
    yield tmp_path
    for name in (
        "words",
        "shop_of_words",
        "shop_of_words.orders",
        "origin_of_words",
        target.FILE_MODULE,
    ):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("words.py", "words"),
        ("./words.py", "words"),
        ("words.py:topology", "words"),
        ("words.py:builder", "built"),
        ("words.py:builder_of", "words"),
        ("words.py:builder_of()", "words"),
        ("words.py:builder_of('a.py:b', parallelism=3)", "a.py:b"),
        ("words.py:Registry.words", "registered"),
        ("words.py:needs_a_path('there')", "there"),
        ("shop_of_words/orders.py", "words"),
        ("shop_of_words.orders", "words"),
        ("shop_of_words.orders:builder", "built"),
        ("shop_of_words.orders:builder_of('x')", "x"),
    ],
)
def test_a_target_is_a_file_or_a_module_with_a_topology_a_builder_or_a_function(
    text: str, id: str
) -> None:
    if id == "a.py:b":
        with pytest.raises(
            InvalidTopologyError, match=r"'a\.py:b'"
        ):  # It got there: the factory was called with it.
            target.resolve(text)
        return
    assert target.resolve(text).topology.id == id


def test_a_file_with_a_colon_in_its_name_is_found(place: Path) -> None:
    (place / "a:b.py").write_text(WORDS)
    assert target.resolve("a:b.py").topology.id == "words"


def test_the_configuration_of_the_file_comes_along(place: Path) -> None:
    resolved = target.resolve("words.py")
    assert resolved.conf is not None
    assert resolved.conf.max_spout_pending == 7
    (place / "words.py").write_text(
        WORDS.replace("Config(max_spout_pending=7)", "{'topology.max.spout.pending': 4}")
    )
    resolved = target.resolve("words.py")
    assert resolved.conf is not None
    assert resolved.conf.max_spout_pending == 4
    (place / "words.py").write_text(WORDS.replace("Config(max_spout_pending=7)", "None"))
    assert target.resolve("words.py").conf is None


def test_a_conf_that_is_no_configuration_is_refused(place: Path) -> None:
    (place / "words.py").write_text(
        WORDS.replace("Config(max_spout_pending=7)", "'something else'")
    )
    with pytest.raises(UsageError, match=r"words\.py:conf is of type str"):
        target.resolve("words.py")


def test_an_impossible_configuration_is_an_error(place: Path) -> None:
    (place / "words.py").write_text(
        WORDS.replace("Config(max_spout_pending=7)", "{'max_spout_pendin': 4}")
    )
    with pytest.raises(ConfigError, match="did you mean 'max_spout_pending'"):
        target.resolve("words.py")


def test_code_of_a_file_travels_by_value_and_code_of_a_module_by_name() -> None:
    by_file, by_name = (
        target.resolve("words.py").topology,
        target.resolve("shop_of_words.orders").topology,
    )
    assert [cls.__name__ for cls in by_file.by_value] == ["Swallow"]
    assert by_name.by_value == ()
    template = by_file.components["swallow"].template
    del sys.modules[target.FILE_MODULE]  # As in a worker, which has no such module.
    assert type(pickle.loads(template)).__name__ == "Swallow"


def test_rows_of_classes_that_a_file_defines_reach_workers(place: Path) -> None:
    (place / "rows.py").write_text(
        WORDS
        + "\nclass Word(str):\n    pass\n\nspout = MemoryTransactionalSpout({0: [(Word('a'),)]}, ['word'], 1)\n"
        "assert spout._spool.read(0, 0, 1) == [(Word('a'),)]\nrows = __import__('pathlib').Path(spout._spool._path(0, 'rows')).read_bytes()\n"
    )
    target.resolve("rows.py")
    rows: bytes = vars(sys.modules.pop(target.FILE_MODULE))["rows"]
    assert type(pickle.loads(rows)[0]).__name__ == "Word"


def test_imports_are_found_beside_the_file_before_the_working_directory(place: Path) -> None:
    (place / "beside").mkdir()
    (place / "beside" / "origin_of_words.py").write_text("here = 'beside'")
    (place / "origin_of_words.py").write_text("here = 'in the working directory'")
    imports = "import origin_of_words\nimport shop_of_words.orders\n"
    (place / "beside" / "words.py").write_text(
        f"{imports}{WORDS}\ntopology = builder_of(origin_of_words.here)"
    )
    assert target.resolve("beside/words.py").topology.id == "beside"
    assert sys.path[:2] == [str(place / "beside"), str(place)]


def test_code_registered_with_cloudpickle_is_recorded_also_within_a_package(place: Path) -> None:
    target.resolve("shop_of_words.orders")
    package = sys.modules["shop_of_words"]
    pickling.travel_by_value(package)
    try:
        rebuilt = sys.modules["shop_of_words.orders"].builder_of().build_topology()
    finally:
        pickling.cloudpickle.unregister_pickle_by_value(package)
    assert [cls.__name__ for cls in rebuilt.by_value] == ["Swallow"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word.py", "there is no file word.py\n  Did you mean words.py?"),
        ("./words", "there is no file ./words\n  Did you mean words.py?"),
        (
            "nowhere/words.py",
            "there is no file nowhere/words.py, nor a directory nowhere\n  The current directory is /.*\\.\n  See",
        ),
        ("nope.py", "there is no file nope.py\n  The current directory is /.*\\.\n  See"),
        ("/nope.py", "there is no file /nope.py\n  See"),
        ("./shop_of_words", "is a directory"),
        (
            "shop_of_words.order",
            "there is no module 'shop_of_words.order': .*\n  Did you mean shop_of_words.orders?",
        ),
        (
            "wrds",
            "there is no module 'wrds': Python finds no 'wrds' from here\n  Did you mean words?",
        ),
        ("words py", "'words py' is neither a module nor a file"),
        (":topology", "names no module and no file"),
        (
            "words.py:topolgy",
            "words.py has no attribute 'topolgy'\n  Did you mean words.py:builder or words.py:topology?",
        ),
        ("words.py:number", "words.py:number is of type int, not a topology"),
        ("words.py:Swallow", "words.py:Swallow is the class Swallow, not a topology"),
        ("words.py:number()", "words.py:number is of type int and cannot be called"),
        (
            "words.py:needs_a_path",
            r"words.py:needs_a_path\(path\) cannot be called without arguments",
        ),
        (
            "words.py:needs_a_path(open('x'))",
            "is neither an attribute's name nor a call with literal arguments",
        ),
        ("words.py:1 + 1", "is neither an attribute's name"),
        ("words.py:(", "is neither an attribute's name"),
    ],
)
def test_a_target_that_leads_nowhere_is_refused_with_a_suggestion(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.sub(r"\?$", r"\?", message)) as refusal:
        target.resolve(text)
    assert refusal.value.exit_code == 2


def test_a_file_that_names_its_topology_otherwise_is_told_how_to_say_so(place: Path) -> None:
    (place / "words.py").write_text(WORDS.replace("\ntopology =", "\nmine ="))
    with pytest.raises(
        UsageError,
        match=r"no attribute 'topology'\n  Did you mean words.py:builder or words.py:mine\?",
    ):
        target.resolve("words.py")
    (place / "empty.py").write_text("")
    with pytest.raises(
        UsageError,
        match=r"no attribute 'topology'\n  Bind it: topology = builder.build_topology\(\)",
    ):
        target.resolve("empty.py")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "def inner():\n    return {}['missing']\n\ninner()\n",
            ["words.py raised KeyError", 'words.py", line 4, in <mod', "KeyError: 'missing'"],
        ),
        (
            "import no_such_library\n",
            [
                "words.py raised ModuleNotFoundError",
                "line 1, in <module>",
                "No module named 'no_such_library'",
            ],
        ),
        ("topology = (\n", ["words.py raised SyntaxError", 'words.py", line 1']),
        ("raise SystemExit(3)\n", ["words.py raised SystemExit", "SystemExit: 3"]),
        (
            "def topology():\n    raise ValueError('no')\n",
            ["words.py:topology raised ValueError", "in topology", "ValueError: no"],
        ),
    ],
)
@pytest.mark.parametrize("text", ["words.py", "words"])
def test_an_exception_of_the_users_while_loading_shows_the_users_traceback_only(
    place: Path, text: str, code: str, shown: list[str]
) -> None:
    (place / "words.py").write_text(code)
    with pytest.raises(UsageError) as refusal:
        target.resolve(text)
    message = str(refusal.value)
    for part in shown:
        assert (
            part.replace("words.py raised", f"{text} raised").replace(
                "words.py:topology", f"{text}:topology"
            )
            in message
        )
    assert "importlib" not in message
    assert "target.py" not in message


def test_an_invalid_topology_is_reported_as_such(place: Path) -> None:
    (place / "words.py").write_text(
        WORDS.replace(".shuffle_grouping", ".global_grouping").replace('("spout")', '("spouts")')
    )
    with pytest.raises(
        InvalidTopologyError, match="unknown component 'spouts'; did you mean 'spout'"
    ):
        target.resolve("words.py")


def test_a_topology_that_runs_itself_when_it_is_imported_is_told_to_guard_the_call(
    place: Path,
) -> None:
    (place / "words.py").write_text(WORDS + "\nimport txtopo\ntxtopo.main(topology)\n")
    with pytest.raises(
        UsageError,
        match=r"words\.py runs its topology when it is imported\n  Guard the call: `if __name__ == \"__main__\":`",
    ):
        target.resolve("words.py")
    assert target.loading() is None


def test_an_object_that_is_no_topology_is_refused_from_any_target() -> None:
    with pytest.raises(UsageError, match="what was given is of type str, not a topology"):
        target.as_topology("words", "what was given")
    graph = target.resolve("words.py").topology
    assert isinstance(graph, TopologyGraph)
    assert target.as_topology(lambda: graph, "what was given") is graph


@pytest.mark.parametrize(
    ("definitions", "use", "told"),
    [
        (
            "lines = queue.Queue()",
            "lines.put(tup)",
            "the global 'lines', which Writes.execute uses",
        ),
        (
            "lines = queue.Queue()\n\ndef put(tup):\n    [lines.put(x) for x in [tup]]\n",
            "put(tup)",
            "the global 'lines', which put uses",
        ),
        (
            "lines = queue.Queue()\n\nclass Out:\n    def put(self):\n        lines.put(1)\n",
            "Out().put()",
            "the global 'lines', which Out.put uses",
        ),
        (
            "class Base(BaseBatchBolt):\n    def f(self):\n        lines\n\nlines = queue.Queue()\nBaseBatchBolt = Base\n",
            "pass",
            "which Base.f uses",
        ),
    ],
)
def test_a_global_that_cannot_be_pickled_is_named_with_the_cure(
    definitions: str, use: str, told: str, place: Path
) -> None:
    with_global = WORDS.replace(
        "class Swallow", f"import queue\n{definitions}\n\nclass Writes"
    ).replace("pass\n", f"{use}\n")
    (place / "writes.py").write_text(with_global.replace("Swallow()", "Writes()"))
    with pytest.raises(InvalidTopologyError) as refused:
        target.resolve("writes.py")
    (problem,) = refused.value.problems
    assert problem.startswith("component 'swallow': the global 'lines', which ")
    assert told in problem
    assert (
        "cannot be pickled (TypeError: cannot pickle '_thread.lock' object). A program's globals travel with the code that uses them"
        in problem
    )
    assert "context.resource(name, factory)" in problem
    assert "constructor" not in problem
