"""The documentation agrees with the source: generated parts are fresh, lists are complete, and
links lead somewhere."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txtopo
from txtopo import config, errors, exports, sinks, stores, testing
from txtopo.command import cli
from txtopo.command.output import READ_NO_LONGER
from txtopo.connectors import files
from txtopo.connectors.files import decisions
from txtopo.connectors.kafka import auxiliary
from txtopo.coordinator import transitions
from txtopo.journal import records as journal_records
from txtopo.state import records
from txtopo.stores import backend
from txtopo.stores import rows as store_rows
from txtopo.stores.redis import layout as redis_layout
from txtopo.testing.simulator.simulation import COULD_NOT_LOOK

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def _generated() -> Any:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generated = _generated()
PAGES = [*generated.pages(), ROOT / "starter" / "README.md"]


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# -- what is made from the source ----------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_parts_made_from_the_source_are_fresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generated.refreshed(text) == text, (
        f"{named(page)} is not what the source says any more; type `make docs-refresh`"
    )


def test_every_part_that_can_be_made_from_the_source_is_on_a_page() -> None:
    shown = re.findall(
        r"<!-- begin ([a-z-]+) -->", "".join(page.read_text(encoding="utf-8") for page in PAGES)
    )
    assert sorted(shown) == sorted(generated.REGIONS)


def test_the_architecture_page_draws_every_transition_and_no_other() -> None:
    diagram = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", text_of("architecture.md"), re.S)
    arrows = [line.strip() for line in diagram[0].splitlines() if "[*]" not in line]
    assert sorted(arrows) == sorted(
        f"{status.value} --> {after.value}: {step.value}"
        for (status, step), after in transitions.TRANSITIONS.items()
    )


def test_the_configuration_page_has_every_setting_with_its_docstring() -> None:
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| .* \| ([^|]+) \|$", text_of("configuration.md"), flags=re.MULTILINE
        )
    )
    assert rows.keys() >= config.Config.model_fields.keys()
    assert all(text.strip() for text in rows.values())


def test_every_setting_has_a_docstring() -> None:
    assert generated.attribute_docstrings(config.Config).keys() >= config.Config.model_fields.keys()


# -- rules ---------------------------------------------------------------------------------------


def test_the_semantics_page_has_every_rule_once_and_in_order() -> None:
    assert generated.RULES[:33] == tuple(range(1, 34))
    assert list(generated.RULES) == sorted(set(generated.RULES))


def test_every_rule_a_test_names_exists() -> None:
    assert set(generated.rules_by_test(ROOT / "tests")) == set(generated.RULES)


def test_the_table_of_rules_and_tests_sees_every_way_to_mark(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        "import pytest\npytestmark = pytest.mark.rule(3)\n@pytest.mark.rule(1, 3)\ndef test_x() -> None: ...\n"
    )
    (tests / "test_b.py").write_text("T = pytest.mark.rule(1)(Machine.TestCase)\n")
    table = generated.rule_table(tests)
    assert "| R1 | `tests/test_a.py`<br>`tests/test_b.py` |" in table
    assert "| R2 | no test yet |" in table
    assert "| R3 | `tests/test_a.py` (2) |" in table


# -- lists that must be complete -----------------------------------------------------------------


def test_the_api_page_has_every_public_name() -> None:
    shown = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text_of("api.md"), flags=re.MULTILINE))
    public = {
        f"{module.__name__}.{name}"
        for module in (txtopo, stores, backend, exports, sinks, testing)
        for name in module.__all__
    } | {"txtopo.runtime.export.Export"}
    assert public - shown == set()
    assert {name for name in shown - public if not name.startswith("txtopo.connectors.")} == set()


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _options(below)
        else:
            yield from (option for option in action.option_strings if option.startswith("--"))


def test_the_command_line_page_names_every_option_and_no_other() -> None:
    there_are = set(_options(cli._parser())) - {"--help"}
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text_of("command-line.md"))) - {"--help"}
    assert shown == there_are


def _commands(parser: argparse.ArgumentParser, before: str = "txtopo") -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                items = list(_commands(below, f"{before} {name}"))
                yield from items or [f"{before} {name}"]


def test_the_command_line_page_has_a_section_for_every_command() -> None:
    sections = re.findall(
        r"^## (txtopo [a-z ]*[a-z])", text_of("command-line.md"), flags=re.MULTILINE
    )
    assert sections == list(_commands(cli._parser()))


def _errors() -> list[type[errors.TxtopoError]]:
    return [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.TxtopoError)
    ]


def test_the_errors_page_has_every_exit_code() -> None:
    codes = {
        int(code)
        for row in re.findall(r"^\| ([\d, ]+) \|", text_of("errors.md"), flags=re.MULTILINE)
        for code in row.split(",")
    }
    raised = {error.exit_code for error in _errors()}
    assert codes == raised | {0, COULD_NOT_LOOK, 130, 143, READ_NO_LONGER}


def test_the_page_on_services_says_of_every_end_of_a_run_whether_to_start_it_again() -> None:
    rows = re.findall(r"^\| ([\w ,]*\d) \|", text_of("services.md"), flags=re.MULTILINE)
    told = {int(code) for row in rows for code in re.findall(r"\d+", row)}
    assert told == {error.exit_code for error in _errors()} | {0, 130, 143}
    (never,) = re.findall(r"^RestartPreventExitStatus=(.+)$", text_of("services.md"), re.MULTILINE)
    assert f"| {never.replace(' ', ', ')} | No" in text_of("services.md")


def test_the_page_on_upgrading_has_the_number_of_every_format() -> None:
    page = text_of("upgrading.md").partition("| kept |")[2]
    told = {
        row.partition(" of ")[0]: set(map(int, re.findall(r"\d+", number)))
        for row, number in re.findall(r"^\| (.+?) \| .+? \| (.*?\d.*?) \|", page, re.MULTILINE)
    }
    state = {each.FORMAT for each in records.Record.__subclasses__()}
    assert told == {
        "the state's records": state,
        "tables": {store_rows.LAYOUT_VERSION},
        "keys": {redis_layout.LAYOUT_VERSION},
        "records": {decisions.VERSION, auxiliary.VERSION},
        "the journal": {journal_records.FORMAT},
    }


def test_the_errors_page_has_a_cure_for_every_error() -> None:
    told = re.sub(
        r"<!-- begin errors -->.*<!-- end errors -->", "", text_of("errors.md"), flags=re.DOTALL
    )
    bases_and_late_tasks = {"TxtopoError", "UsageError", "StaleAttemptError"}
    of_an_exit_code = {"HeldError", "ZooKeeperUnavailableError", "ZooKeeperAccessError"}
    of_exit_code_6 = {"StateMismatchError", "UnreadableStateError"}
    names = {name for name in vars(errors) if name.endswith(("Error", "Exception"))}
    alone = names - bases_and_late_tasks - of_an_exit_code - of_exit_code_6
    assert [name for name in sorted(alone) if f"`{name}`" not in told] == []
    assert "(exit-code-6)=" in told, "messages may name the address of this section"


def test_every_error_is_drawn_in_the_tree() -> None:
    tree = generated.error_tree()
    assert [
        name
        for name in vars(errors)
        if name.endswith(("Error", "Exception")) and f"── {name} " not in tree
    ] == []


def test_the_glossary_is_in_alphabetical_order_and_says_each_word_once() -> None:
    words = [
        word.replace("`", "").lower()
        for word in re.findall(
            r"^- (?:\*\*|`)(.+?)(?:\*\*|`):", text_of("glossary.md"), flags=re.MULTILINE
        )
    ]
    assert len(words) > 30
    assert words == sorted(set(words))


def project() -> Any:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_the_page_about_installing_and_the_readme_begin_with_pip_and_name_every_extra_for_users() -> (
    None
):
    extras = set(project()["optional-dependencies"]) - {"bench", "dev", "docs"}
    page = text_of("install.md")
    rows = re.findall(r"^\| `txtopo\[([a-z0-9]+)\]` \|", page, flags=re.MULTILINE)
    assert sorted(rows) == sorted(extras), "each once"
    for text in (page, README):
        assert (
            re.findall(r"^\$ (.+?)(?:  +#.*)?$", text, flags=re.MULTILINE)[0]
            == "pip install txtopo"
        )
    install = README.partition("## Install")[2].partition("\n## ")[0]
    assert [extra for extra in sorted(extras) if not re.search(rf"\b{extra}\b", install)] == []


def test_the_readme_says_its_part_in_five_hundred_words_before_the_reference() -> None:
    told, reference, _ = CODE.sub("", README).partition("\n## Reference\n")
    assert reference
    assert len(re.findall(r"\w[\w'.+-]*", re.sub(r"\]\[[^]]*\]|\]\([^)]*\)", "]", told))) <= 500


def test_the_readme_promises_and_describes_every_system_that_is_written_to_or_read() -> None:
    systems = {
        "sql": "SQL tables",
        "kafka": "Kafka topics",
        "files": "files",
        "delta": "Delta tables",
    }
    folders = {path.parent.name for path in (ROOT / "txtopo/connectors").glob("*/__init__.py")}
    assert folders == set(systems)
    (promise,) = re.findall(r"^\| A batch takes effect once in .*$", README, flags=re.MULTILINE)
    assert [system for system in systems.values() if f"[{system}][" not in promise] == []
    (sources,) = re.findall(r"^- \[Sources\].*$", README, flags=re.MULTILINE)
    assert "files" in sources
    assert "[Kafka topics][kafka]" in sources


def test_the_readme_links_to_addresses_of_the_project_only() -> None:
    # A package index shows the README without the folder that holds it.
    assert [
        link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https://")
    ] == []
    addresses = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", README, flags=re.MULTILINE))
    used = set(re.findall(r"\]\[([^]]+)\]", CODE.sub("", README)))
    assert used == addresses.keys()
    urls = project()["urls"]
    for address in addresses.values():
        if address.startswith(urls["Documentation"]):
            page = DOCS / address.removeprefix(urls["Documentation"]).replace(".html", ".md")
        else:
            assert address.startswith(f"{urls['Source']}/blob/main/"), address
            page = ROOT / address.removeprefix(f"{urls['Source']}/blob/main/")
        assert page.is_file(), address


def test_the_speed_in_the_readme_is_the_speed_that_was_measured() -> None:
    measured = re.findall(
        r"^\| `([a-z.-]+)` \| (.+?) \| ([0-9.]+) \|", text_of("benchmarks.md"), flags=re.MULTILINE
    )

    def ratios(lines: str, contenders: str) -> list[float]:
        chosen = (
            row for row in measured if re.match(lines, row[0]) and row[1].endswith(contenders)
        )
        return sorted(float(ratio) for _, _, ratio in chosen)

    speed = " ".join(README.partition("## Is it fast?")[2].partition("\n## ")[0].split())
    loops = ratios(r"tuples\.", "txtopo : bare loop")
    faster = min(ratios(r"txn.rate$", "Structured Streaming, per-row Python"))
    for text in (speed, text_of("why.md")):
        assert f"about {faster:.0f} times" in text
    assert f"{loops[0]} to {loops[-1]} of the tuples" in speed
    columns = ratios(r"columns\.", "pyarrow by hand in 2 processes")
    assert f"{columns[0]} to {columns[-1]} of the rows per second of pyarrow by hand" in speed


def test_the_glossary_has_every_status_of_an_attempt_in_its_order() -> None:
    statuses = ", ".join(status.value for status in transitions.Status)
    assert f": {statuses}." in " ".join(text_of("glossary.md").split())


@pytest.mark.parametrize(
    ("page", "store"),
    [
        ("sqlite", stores.SqliteStore),
        ("postgresql", stores.SqlStore),
        ("redis", stores.RedisStore),
    ],
)
def test_the_page_of_a_store_has_every_argument(page: str, store: type) -> None:
    rows = "".join(re.findall(r"^\| (`.+?`) \|", text_of(f"stores/{page}.md"), flags=re.MULTILINE))
    arguments = list(inspect.signature(store).parameters.values())[2:]
    assert [argument.name for argument in arguments if f"`{argument.name}`" not in rows] == []


def test_the_page_of_sources_has_every_spout_and_every_argument_of_the_first() -> None:
    page = text_of("sources.md")
    spouts = {name for name in [*files.__all__, *testing.__all__] if name.endswith("Spout")}
    assert len(spouts) >= 7
    assert [spout for spout in sorted(spouts) if spout not in page] == []
    arguments = inspect.signature(files.FileTransactionalSpout).parameters
    assert [argument for argument in arguments if f"| `{argument}` |" not in page] == []


def test_the_readme_lists_every_command() -> None:
    told = set(
        re.findall(r"^\$ txtopo ([a-z]+)", README.partition("## Reference")[2], flags=re.MULTILINE)
    )
    assert {command.split()[1] for command in _commands(cli._parser())} - told == set()


def test_the_evidence_is_the_last_group_of_the_index() -> None:
    groups = re.findall(r":caption: (.+)\n:maxdepth: 1\n\n((?:.+\n)+?)```", text_of("index.md"))
    assert groups[-1] == ("Evidence", "guards\nsoak\nbenchmarks\n")


def test_the_starters_are_counted_rightly() -> None:
    count = len([path for path in (ROOT / "starter").glob("*.py") if path.name != "__init__.py"])
    words = {
        5: "five",
        6: "six",
        7: "seven",
        8: "eight",
        9: "nine",
        10: "ten",
        11: "eleven",
        12: "twelve",
        13: "thirteen",
        14: "fourteen",
    }
    assert f"`starter/` of a checkout has {words[count]} topologies" in text_of(
        "getting-started.md"
    )
    assert f"\n{words[count].capitalize()} topologies" in (
        ROOT / "starter" / "README.md"
    ).read_text(encoding="utf-8")


# -- decisions, links, make ----------------------------------------------------------------------


def test_decisions_are_numbered_without_gaps_and_say_context_decision_and_consequences() -> None:
    decisions = sorted((DOCS / "decisions").glob("0*.md"))
    assert [int(page.name[:4]) for page in decisions] == list(range(1, len(decisions) + 1))
    for number, page in enumerate(decisions, 1):
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. "), page.name
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, flags=re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ], page.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_to_files_lead_to_files(page: Path) -> None:
    links = re.findall(
        r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")
    )
    assert [link for link in links if not (page.parent / link).exists()] == []


def _unknown_names(table: str) -> list[str]:
    """The names in ``table`` of no file, no folder, no name in the source and no contract of the
    layers."""
    below = [
        path
        for folder in ("txtopo", "docs", "starter", "tests")
        for path in (ROOT / folder).rglob("*")
    ]
    paths = [f"/{path.relative_to(ROOT).as_posix()}" for path in (*below, *ROOT.glob("*"))]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "txtopo").rglob("*.py"))
    words = set(re.findall(r"[\w-]+", source + project))

    def is_known(name: str) -> bool:
        pattern = f"*/{re.sub('<[^>]+>', '*', name)}"
        return (
            any(fnmatch.fnmatch(path, pattern) for path in paths)
            or set(re.split(r"[.\s]", name)) <= words
        )

    names = [name for name in re.findall(r"`([^`]+)`", table) if not is_known(name)]
    return names + [
        contract
        for contract in re.findall(r'"([^"]+)"', table)
        if f'name = "{contract}"' not in project
    ]


def test_the_table_of_changes_names_files_functions_and_contracts_that_exist() -> None:
    table = (
        text_of("architecture.md").partition("\n## Where a change goes\n")[2].partition("\n## ")[0]
    )
    assert table.count("\n|") > 10
    assert _unknown_names(table) == []
    gone = 'in `engine/stutus.py`, `GroupingTraitz`, `Tally.subtract` and `docs/shops/<database>.md`; the contract "Connectors know each other"'
    assert _unknown_names(gone) == [
        "engine/stutus.py",
        "GroupingTraitz",
        "Tally.subtract",
        "docs/shops/<database>.md",
        "Connectors know each other",
    ]


def test_make_alone_lists_every_target_that_a_page_tells_people_to_type() -> None:
    told = {
        target
        for page in PAGES
        for target in re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
    }
    listed = subprocess.run(
        ["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {"demo", "test", "ci"} <= told
    assert told <= set(re.findall(r"^  make ([a-z-]+) ", listed, flags=re.MULTILINE))
