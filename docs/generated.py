"""Parts of the documentation that are made from the source, and so stay true.

A page holds them between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, as
ordinary Markdown that reads well without being built. ``python docs/generated.py`` writes them
anew; a test fails while a part differs from the source. Only the table of the rules and
their tests is made while the documentation is built, because it changes with every test.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic_core

from txtopo import config, errors, faults
from txtopo.coordinator import transitions
from txtopo.page import metrics as page_metrics
from txtopo.state import layout
from txtopo.stores.redis import layout as redis_layout
from txtopo.stores.servers import layout as server_layout
from txtopo.stores.sqlite import layout as sqlite_layout

DOCS = Path(__file__).resolve().parent
RULES = tuple(
    map(
        int,
        re.findall(
            r"^\*\*R(\d+)\.\*\*",
            (DOCS / "semantics.md").read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        ),
    )
)
"""The rules of semantics.md."""


def settings() -> str:
    """A table of every field of ``Config``: with default, allowed values, and docstring."""
    rows = ["| setting | default | may be | meaning |", "|---|---|---|---|"]
    texts = attribute_docstrings(config.Config)
    for name, field in config.Config.model_fields.items():
        rows.append(
            f"| `{name}` | {_default(field)} | {_allowed(field)} | {_markdown(texts[name])} |"
        )
    return "\n".join(rows)


def attribute_docstrings(cls: type) -> dict[str, str]:
    """The string below each annotated attribute of ``cls``, on one line."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in itertools.pairwise(tree.body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
    return found


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is pydantic_core.PydanticUndefined:
        return "must be given"
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= 1 << 20
        and value % (1 << 20) == 0
    ):
        return f"`{value}` ({value >> 20} MiB)"
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= 1 << 10
        and value % (1 << 10) == 0
    ):
        return f"`{value}` ({value >> 10} KiB)"
    return f"`{value!r}`"


def _allowed(field: Any) -> str:
    bounds = [text for limit in field.metadata if (text := _bound(limit))]
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    """``annotation`` in words."""
    if typing.get_origin(annotation) is Literal:
        return " or ".join(f"`{value!r}`" for value in typing.get_args(annotation))
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return " or ".join(map(_type, typing.get_args(annotation)))
    return {types.NoneType: "`None`", Path: "path"}.get(annotation) or str(
        (typing.get_origin(annotation) or annotation).__name__
    )


def _bound(limit: Any) -> str:
    for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        if hasattr(limit, attribute):
            return f"{sign} {getattr(limit, attribute)}"
    return "begins with `/`" if hasattr(limit, "pattern") else ""


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def rooms() -> str:
    """The packages of txtopo, with the first paragraph of their docstrings."""
    paths = sorted((DOCS.parent / "txtopo").rglob("__init__.py"))
    rows = [f"| `{path.parent.relative_to(DOCS.parent)}` | {_purpose(path)} |" for path in paths]
    return "\n".join(["| package | |", "|---|---|", *rows])


def _purpose(path: Path) -> str:
    """The first paragraph of the docstring of the module at ``path``, as Markdown."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring is not None, f"{path} does not say what it is for"
    return _markdown(
        re.sub(
            r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", " ".join(docstring.partition("\n\n")[0].split())
        )
    )


def states() -> str:
    """The life of an attempt, as a state diagram."""
    lines = [
        "stateDiagram-v2",
        "  [*] --> emitting: learns its metadata by emitting",
        "  [*] --> processing: metadata is known",
        "  [*] --> waiting: metadata is known, and processing is deferred",
        *(
            f"  {status.value} --> {after.value}: {step.value}"
            for (status, step), after in transitions.TRANSITIONS.items()
        ),
        "  committed --> [*]",
        "  discarded --> [*]",
    ]
    return "\n".join(["```mermaid", *lines, "```"])


def error_tree() -> str:
    """The tree of errors, as their module draws it."""
    return _drawing(errors)


def znodes() -> str:
    """Where a topology's state is in ZooKeeper, as its module draws it."""
    return _drawing(layout)


def tables() -> str:
    """The tables of the SQLite store, as its module draws them."""
    return _drawing(sqlite_layout)


def server_tables() -> str:
    """The tables of a store in a database server, as their module draws them."""
    return _drawing(server_layout)


def redis_keys() -> str:
    """The keys of a store in Redis, as their module draws them."""
    return _drawing(redis_layout)


def metrics() -> str:
    """A table of the metrics."""
    rows = ["| metric | type | labels besides `topology` | meaning |", "|---|---|---|---|"]
    for metric in page_metrics.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.meaning} |")
    return "\n".join(rows)


def fault_points() -> str:
    """The named fault points, in their order."""
    return "\n".join(f"- `{point}`" for point in typing.get_args(faults.FaultPoint))


def guards() -> str:
    """A table of the guards: the damage without each, its place, and the tests that need it."""
    rows = [
        "| guard | without it … | where | what goes red without it | mutations |",
        "|---|---|---|---|---|",
    ]
    for guard in _guards():
        rules = ", ".join(f"R{rule}" for rule in guard.rules)
        where = "<br>".join(
            f"`{file}`" for file in dict.fromkeys(mutation.file for mutation in guard.mutations)
        )
        quick = [
            test
            for mutation in guard.mutations
            for test in mutation.tests
            if test.startswith("tests/")
        ]
        tests = "<br>".join(f"`{test}`" for test in dict.fromkeys([*quick, *guard.staged]))
        mutations = "<br>".join(mutation.name for mutation in guard.mutations)
        rows.append(
            f"| **{guard.name}** ({rules}) | {guard.prevents} | {where} | {tests} | {mutations} |"
        )
    return "\n".join(rows)


def _guards() -> Any:
    # The tests are beside this folder, not installed, and what runs this file may not look there.
    if str(DOCS.parent) not in sys.path:
        sys.path.append(str(DOCS.parent))
    return importlib.import_module("tests.mutants.guards").GUARDS


def _drawing(module: Any) -> str:
    """The first literal block of a module's docstring."""
    match = re.search(r"::\n\n((?:    .*\n|\n)+)", inspect.getdoc(module) or "")
    if match is None:
        raise ValueError(f"the docstring of {module.__name__} has no literal block")
    return f"```text\n{textwrap.dedent(match[1]).strip()}\n```"


REGIONS: dict[str, Callable[[], str]] = {
    "rooms": rooms,
    "settings": settings,
    "states": states,
    "errors": error_tree,
    "znodes": znodes,
    "tables": tables,
    "server-tables": server_tables,
    "redis-keys": redis_keys,
    "metrics": metrics,
    "fault-points": fault_points,
    "guards": guards,
}


def refreshed(text: str) -> str:
    """``text`` with every region as the source has it now."""

    def anew(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{REGIONS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin ([a-z-]+) -->\n.*?<!-- end \1 -->", anew, text, flags=re.DOTALL)


def pages() -> list[Path]:
    """Every page, the README and its neighbours included."""
    return [
        *sorted(DOCS.parent.glob("*.md")),
        *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
    ]


def rules_by_test(tests: Path) -> dict[int, dict[str, int]]:
    """For each rule, the test files that check it (relative to the parent of ``tests``), with how
    many tests or classes there say so."""
    found: dict[int, dict[str, int]] = {rule: {} for rule in RULES}
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        for rule in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(rule, {})
            found[rule][name] = found[rule].get(name, 0) + 1
    return found


def _marked(tree: ast.AST) -> Iterator[int]:
    """The numbers in every ``pytest.mark.rule(...)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
            yield from (
                argument.value
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
            )


def rule_table(tests: Path) -> str:
    """Which test files check which rule, as a Markdown table."""
    rows = ["| rule | checked by |", "|---|---|"]
    for rule, files in sorted(rules_by_test(tests).items()):
        shown = "<br>".join(
            f"`{name}`" + (f" ({count})" if count > 1 else "") for name, count in files.items()
        )
        rows.append(f"| R{rule} | {shown or 'no test yet'} |")
    return "\n".join(rows)


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (fresh := refreshed(text)) != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"refreshed {page}")
