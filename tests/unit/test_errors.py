"""Every error: rendered from its fields, the same after pickling, with the exit code it ends a
process with."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import txtopo
from txtopo import Config, TransactionAttempt, errors
from txtopo.connectors.files import FileSink, FileTransactionalSpout
from txtopo.connectors.kafka import KafkaSink
from txtopo.connectors.sql import SqlSink
from txtopo.dataplane.outcome import Failure
from txtopo.exports import ExportQueue
from txtopo.stores import SqliteStore

DOCS = Path(__file__).resolve().parents[2] / "docs"

USER = (
    "count",
    3,
    "7:1000002",
    "commit",
    "finish_batch",
    "ValueError: mine",
    "Traceback:\n  line\n",
)
TEXT = ("no such thing\n  Do this instead.",)

EXAMPLES: dict[type[Exception], tuple[object, ...]] = {
    errors.FailedException: TEXT,
    errors.StaleAttemptError: ("counts.db", "sum", "8:1", "7:0"),
    errors.TxtopoError: TEXT,
    errors.UserCodeError: USER,
    errors.EmitError: USER,
    errors.HeldStateError: USER,
    errors.OutOfMemoryError: USER,
    errors.MetadataError: USER,
    errors.StoreConflictError: USER,
    errors.RowRefusedError: (
        "shop.db#sales",
        "write",
        1,
        "7:0",
        12,
        "id=None",
        "NOT NULL constraint failed: sales.id",
    ),
    errors.WorkerCrashError: (7, 8, "Python worker exited unexpectedly"),
    errors.LocalDiskError: ("/var/spill", "[Errno 28] No space left on device"),
    errors.OutrunError: ("counts.db#counts", "words", 7, 9),
    errors.SparkLostError: ("[Errno 111] Connection refused",),
    errors.BatchTooLargeError: ("the record of txid 7", 600_000, 524_288, "metadata_bytes_max"),
    errors.UsageError: TEXT,
    errors.InvalidTopologyError: (
        "words",
        ("bolt 'a' listens to no component", "component 'b': parallelism is 0"),
    ),
    errors.ConfigError: TEXT,
    errors.SetupError: TEXT,
    errors.InputError: TEXT,
    errors.PoisonBatchError: (7, 5, "ValueError: mine"),
    errors.FencedError: TEXT,
    errors.HeldError: TEXT,
    errors.ZooKeeperUnavailableError: TEXT,
    errors.ZooKeeperAccessError: TEXT,
    errors.StateMismatchError: TEXT,
    errors.UnreadableStateError: ("/txtopo/words/current", "it is not JSON"),
}

CODES: dict[type[Exception], int] = {
    errors.TxtopoError: 1,
    errors.UserCodeError: 1,
    errors.EmitError: 1,
    errors.HeldStateError: 1,
    errors.OutOfMemoryError: 1,
    errors.MetadataError: 1,
    errors.StoreConflictError: 1,
    errors.RowRefusedError: 1,
    errors.WorkerCrashError: 1,
    errors.BatchTooLargeError: 1,
    errors.LocalDiskError: 1,
    errors.OutrunError: 1,
    errors.SparkLostError: 1,
    errors.UsageError: 2,
    errors.InvalidTopologyError: 2,
    errors.ConfigError: 2,
    errors.SetupError: 2,
    errors.InputError: 2,
    errors.PoisonBatchError: 3,
    errors.FencedError: 4,
    errors.HeldError: 4,
    errors.ZooKeeperUnavailableError: 5,
    errors.ZooKeeperAccessError: 5,
    errors.StateMismatchError: 6,
    errors.UnreadableStateError: 6,
}


def classes() -> list[type[Exception]]:
    return [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__ == errors.__name__
    ]


def test_every_error_has_an_example_here() -> None:
    assert set(classes()) == set(EXAMPLES)
    assert set(CODES) == {cls for cls in EXAMPLES if issubclass(cls, errors.TxtopoError)}


@pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling_and_renders_every_field(cls: type[Exception]) -> None:
    error = cls(*EXAMPLES[cls])
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    for value in EXAMPLES[cls]:
        for part in value if isinstance(value, tuple) else (value,):
            assert str(part).rstrip() in str(error), f"{part!r} is not shown"


@pytest.mark.parametrize("cls", CODES, ids=lambda cls: cls.__name__)
def test_an_error_knows_the_exit_code_of_the_process(cls: type[Exception]) -> None:
    assert errors.exit_code_of(cls(*EXAMPLES[cls])) == CODES[cls]


def anchors(page: Path) -> set[str]:
    """The names of the sections of a page, as addresses have them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    slugs = {"-".join(re.findall(r"\w+", heading.lower())) for heading in headings}
    return {"", *slugs, *re.findall(r"^\(([\w-]+)\)=$", text, flags=re.M)}


@pytest.mark.parametrize(
    ("mistake", "page"),
    [
        (lambda: SqliteStore("words.db", "no table"), "stores.html"),
        (lambda: SqlSink("shop.db"), "sinks.html"),
        (lambda: FileTransactionalSpout("lines", bytes_per_batch=0), "sources.html"),
        (lambda: FileSink(""), "files.html"),
        (lambda: KafkaSink("", "topic"), "kafka.html"),
        (lambda: ExportQueue("", SqliteStore("words.db", "words")), "export-queues.html"),
        (lambda: Config(max_attempts=0), "configuration.html#every-setting"),
    ],
)
def test_a_wrong_argument_ends_with_the_page_of_the_package_that_refuses_it(
    mistake: Callable[[], object], page: str
) -> None:
    with pytest.raises(errors.UsageError) as refused:
        mistake()
    data = pickle.dumps(refused.value)
    attempt = TransactionAttempt(1, 0)
    in_task = Failure("error", "count", 0, attempt, "commit", "execute", "no", "", data)
    for error in (refused.value, pickle.loads(data), in_task.to_error()):
        assert error.__notes__ == [f"  See {errors.PAGES}{page}"]


def test_an_error_of_exit_codes_2_to_6_ends_with_the_address_of_its_page() -> None:
    packages = list(pkgutil.walk_packages(txtopo.__path__, "txtopo."))
    modules = [
        importlib.import_module(each.name)
        for each in packages
        if not each.name.startswith("txtopo.demo") and not each.name.endswith("__main__")
    ]
    pages = {
        each.__name__: str(vars(each)["ERROR_PAGE"])
        for each in modules
        if "ERROR_PAGE" in vars(each)
    }
    connectors = {each.name for each in packages if each.ispkg and "connectors." in each.name}
    assert connectors | {"txtopo.stores", "txtopo.exports", "txtopo.sinks"} <= set(pages)
    waiting = [errors.TxtopoError]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("txtopo.") and cls.exit_code != 1:
            pages[cls.__name__] = cls.page
    elsewhere = {"LogChangedError", "UnknownTopicError", "DividedOtherwiseError", "AbandonedError"}
    assert {"UsageError", "PoisonBatchError", "HeldError", *elsewhere} <= set(pages)
    for name, address in pages.items():
        page, _, anchor = address.partition(".html#")
        assert anchor in anchors(DOCS / f"{page.removesuffix('.html')}.md"), name
    error = pickle.loads(pickle.dumps(errors.StateMismatchError("they differ", without_state="x")))
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith(f": they differ\n  See {errors.PAGES}errors.html#exit-code-6\n")
    assert f'Documentation = "{errors.PAGES}"' in (DOCS.parent / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), errors.FailedException("not now")], ids=repr
)
def test_any_other_error_ends_with_exit_code_1(error: BaseException) -> None:
    assert errors.exit_code_of(error) == 1


def test_an_exit_code_that_is_no_number_is_not_believed() -> None:
    error = ValueError("mine")
    error.exit_code = "boom"  # type: ignore[attr-defined]
    assert errors.exit_code_of(error) == 1


@pytest.mark.rule(7)
def test_failed_exception_never_ends_a_run_so_it_is_no_txtopo_error() -> None:
    assert not issubclass(errors.FailedException, errors.TxtopoError)
    assert issubclass(errors.StaleAttemptError, errors.FailedException)


def test_the_tree_drawn_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.search(r"[├└]── (\w+)", line)
        if match is None:
            if line.strip() == "Exception":
                parents = [(line.index("Exception"), "Exception")]
            continue
        indent = match.start(1)
        while parents and parents[-1][0] >= indent:
            parents.pop()
        drawn[match.group(1)] = parents[-1][1]
        parents.append((indent, match.group(1)))
    assert drawn == {cls.__name__: cls.__bases__[0].__name__ for cls in classes()}


def test_the_exit_codes_drawn_in_the_docstring_are_the_exit_codes() -> None:
    drawn = {
        name: int(code)
        for name, code in re.findall(r"(\w+) +([1-6])(?::|\n|$)", errors.__doc__ or "")
    }
    assert drawn
    assert {name: CODES[getattr(errors, name)] for name in drawn} == drawn


def test_an_error_of_a_spout_coordinator_says_that_it_happened_on_the_driver() -> None:
    error = errors.UserCodeError(
        "spout", -1, "7", "opening", "is_ready", "ValueError: mine", "Traceback:\n"
    )
    assert "in component 'spout', on the driver, txid 7, is_ready" in str(error)
    assert "-1" not in str(error)


def test_the_first_line_of_an_error_of_user_code_is_the_users() -> None:
    assert str(errors.UserCodeError(*USER)).splitlines()[:2] == [
        "ValueError: mine",
        "  in component 'count', task 3, attempt 7:1000002, commit phase, finish_batch",
    ]


def test_a_bound_that_was_exceeded_comes_with_a_cure() -> None:
    assert str(errors.BatchTooLargeError("a row", 7, 5, "blob_bytes_max")).endswith(
        "Make the batches smaller, or raise blob_bytes_max."
    )
    assert str(errors.BatchTooLargeError("a row", 7, 5, "blob_bytes_max", "Emit less.")).endswith(
        "\n  Emit less."
    )
