"""``txtopo new``: copies a starter into a user's directory, with a test and a README.

The starters have one source: a checkout's folder ``starter``. The wheel has copies of the files in
``KINDS``, made when the wheel is built (``force-include`` in ``pyproject.toml``).

Runs on: where the command is typed; starts nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from txtopo import errors

DESCRIPTION = "Write a topology, its test, its data and a README into a new directory."
DEFAULT = "word-count"

_PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (_PACKAGE / "starters", _PACKAGE.parent / "starter")
"""The starters' folders, in an installed wheel and in a checkout."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A starter to choose with ``--from``. ``files``: the program, then its data, as named in
    ``starter/``. ``results`` is the command that shows the results. ``change`` tells how to add
    data. ``extra`` is the txtopo extra that the program needs."""

    about: str
    files: tuple[str, ...]
    results: str
    change: str
    extra: str | None = None


_ROWS = """python -c 'import sqlite3; print(*sqlite3.connect(".txtopo/shop.db").execute("SELECT * FROM sales"), sep="\\n")'"""

KINDS: Mapping[str, Kind] = {
    "word-count": Kind(
        "Counts the words of `lines.txt` with an aggregate of the library.",
        ("word_count.py", "lines.txt"),
        "txtopo store scan .txtopo/word-count.db word_count",
        "Append lines to `lines.txt`.",
    ),
    "global-count": Kind(
        "Counts all words of all batches with a committer of its own.",
        ("transactional_global_count.py",),
        "txtopo store scan .txtopo/global-count.db global_count",
        "Append words to a partition of `DATA`.",
    ),
    "columns": Kind(
        "Adds up sales by shop and by day, as `pyarrow.RecordBatch`es.",
        ("column_sales.py",),
        "txtopo store scan .txtopo/column-sales.db shop_totals",
        "Make a table of `DATA` longer.",
        "arrow",
    ),
    "sql": Kind(
        "Writes each sale of `sales.csv` as a row of an SQL table.",
        ("sales_table.py", "sales.csv"),
        _ROWS,
        "Append lines to `sales.csv`.",
    ),
    "kafka": Kind(
        "Counts the words of the topic `KAFKA_TOPIC` (default `words`) at `KAFKA_SERVERS` (default `127.0.0.1:9092`).",
        ("kafka_words.py",),
        "txtopo store scan .txtopo/kafka-words.db kafka_words",
        "Write lines to the topic, with any producer.",
        "kafka",
    ),
}

_MODULES_OF_EXTRAS = {"arrow": "pyarrow", "kafka": "confluent_kafka"}

_README = """\
# {title}

{about} The program is `{program}`, its test `test_{program}`.

```console
{commands}
```

{change} The next run takes only the new data. To see the results:

```console
$ {results}
```

State and results are in `.txtopo`. They belong together: to start over, type
`txtopo reset {program} --execute`, or remove `.txtopo`.
"""

_TEST = '''\
"""The results of ``{module}`` are right whatever fails, as far as simulated failures can tell."""

from pathlib import Path

import {module}


def test_failures_change_no_result(txtopo_test, tmp_path: Path) -> None:
    txtopo_test({module}.make_topology(tmp_path / "results.db"), seeds=50)
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``txtopo new``."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="the directory to make (an empty directory may exist)",
    )
    parser.add_argument(
        "--from",
        dest="kind",
        choices=tuple(KINDS),
        default=DEFAULT,
        help="which topology (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the directory, and print the commands to type next."""
    directory: Path = arguments.directory
    kind = KINDS[arguments.kind]
    texts = _texts(directory, kind)
    _refuse_used(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.UsageError(
            f"{directory} cannot be written: {error.strerror}\n  Name a writable directory, or make room on the disk."
        ) from error
    print(f"{directory} has {', '.join(texts)}\n\ntype next:")
    print("\n".join(f"  {line}" for line in _next(directory, kind)))
    return 0


def _texts(directory: Path, kind: Kind) -> dict[str, str]:
    """Each file's text, by name."""
    folder = next((place for place in PLACES if (place / kind.files[0]).is_file()), None)
    if folder is None:
        raise errors.SetupError(
            "the starters are not installed with this txtopo\n  Install txtopo again: pip install --force-reinstall --no-deps txtopo"
        )
    program = kind.files[0]
    # A starter's docstring says `starter/NAME`, but the new directory has the file beside the
    # README.
    texts = {
        name: (folder / name).read_text(encoding="utf-8").replace("starter/", "")
        for name in kind.files
    }
    texts[f"test_{program}"] = _TEST.format(module=Path(program).stem)
    title = directory.absolute().name
    commands = "\n".join(f"$ {line}" for line in _commands(program))
    texts["README.md"] = _README.format(
        title=title,
        about=kind.about,
        program=program,
        commands=commands,
        change=kind.change,
        results=kind.results,
    )
    return texts


def _refuse_used(directory: Path) -> None:
    cure = f"Name a directory that is empty, or not there yet: txtopo new {shlex.quote(f'{directory}-2')}"
    if directory.is_dir() and any(directory.iterdir()):
        raise errors.UsageError(f"{directory} is not empty\n  {cure}")
    if directory.exists() and not directory.is_dir():
        raise errors.UsageError(f"{directory} is a file\n  {cure}")


def _next(directory: Path, kind: Kind) -> list[str]:
    """The commands to type next, with `pip install` for missing packages."""
    modules = {"pytest": "pytest"} | (
        {f"'txtopo[{kind.extra}]'": _MODULES_OF_EXTRAS[kind.extra]} if kind.extra else {}
    )
    absent = sorted(
        package for package, module in modules.items() if importlib.util.find_spec(module) is None
    )
    return [
        f"cd {shlex.quote(str(directory))}",
        *([f"pip install {' '.join(absent)}"] if absent else []),
        *_commands(kind.files[0]),
    ]


def _commands(program: str) -> list[str]:
    """The commands for ``program``, each with a comment."""
    commands = [
        (f"txtopo run {program}", "from the first batch"),
        (f"txtopo run {program}", "again: nothing counts twice"),
        (f"txtopo test {program}", "the results under simulated failures"),
        ("pytest", "the same, as a test"),
    ]
    width = max(len(command) for command, _ in commands)
    return [f"{command:{width}}  # {comment}" for command, comment in commands]
