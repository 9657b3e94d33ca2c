"""Command-line options that say where the topologies' state is, and the connection to the state.

Runs on: driver.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from txtopo import config, errors
from txtopo.command import options, output
from txtopo.journal import recording, writer
from txtopo.spark import settings as spark_settings
from txtopo.state import credentials, directory, layout, opening

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the state is."""
    group = parser.add_argument_group("where the state is")
    add_data_dir(group)
    group.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="the runs' ZooKeeper ensemble (default: as set)",
    )
    group.add_argument(
        "--zookeeper-root",
        metavar="PATH",
        help="the runs' setting zookeeper_root (default: as set, or /txtopo)",
    )
    options.add_verbose(parser)


def add_data_dir(parser: argparse._ActionsContainer) -> None:
    """Add ``--data-dir``."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"the runs' data directory (default: as set, or {directory.DEFAULT})",
    )


def add_journal(parser: argparse.ArgumentParser) -> None:
    """Add the topology and ``--data-dir``, for a command that reads the journal alone."""
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY_ID",
        nargs="?",
        help="the topology (default: the only one in the data directory)",
    )
    add_data_dir(parser)
    options.add_verbose(parser)


def add_execute(parser: argparse.ArgumentParser) -> None:
    """Add ``--execute``, without which nothing is changed."""
    parser.epilog = "Without --execute nothing is changed: the command only prints the changes.\n"
    parser.add_argument("--execute", action="store_true", help="do it")
    output.add_json(parser)


def where(parsed: argparse.Namespace) -> config.Config:
    """The settings that say where the state is. A run that is started here has the same settings,
    unless its code changes them."""
    return options.resolved(parsed, None, None, spark_settings.of_this_process()).config


def reaching(conf: config.Config) -> tuple[str, str]:
    """The options by which other commands reach a run's data directory and its ZooKeeper. Each is
    empty if it has its default. A data directory is not named beside an ensemble."""
    named: dict[str, object] = {"zookeeper": conf.zookeeper}
    if conf.zookeeper_root != config.Config().zookeeper_root:
        named["zookeeper-root"] = conf.zookeeper_root
    data_dir = conf.data_dir if conf.zookeeper is None else None
    return _as_typed({"data-dir": data_dir}), _as_typed(named)


def _as_typed(named: dict[str, object]) -> str:
    pairs = ((f"--{name}", str(value)) for name, value in named.items() if value)
    return "".join(f" {option} {shlex.quote(value)}" for option, value in pairs)


def data_dir(parsed: argparse.Namespace) -> Path:
    """The data directory, if no ensemble is given."""
    return where(parsed).data_dir or Path(directory.DEFAULT)


def journal(parsed: argparse.Namespace) -> Path:
    """The journal's directory of the topology, by default of the only topology."""
    folder, topology_id = data_dir(parsed) / recording.FOLDER, parsed.topology
    if topology_id is None:
        ids = sorted(map(layout.decode_name, os.listdir(folder))) if folder.is_dir() else []
        if len(ids) > 1:
            raise errors.UsageError(
                f"{folder} has journals of several topologies: {', '.join(ids)}\n  Name the topology."
            )
        topology_id = next(iter(ids), None)
    path = None if topology_id is None else recording.place(data_dir(parsed), topology_id)
    if path is None or not writer.segments(path):
        raise errors.UsageError(
            f"there is no journal {f'of topology {topology_id!r} ' if topology_id else ''}in {folder}\n"
            "  Name the runs' data directory with `--data-dir DIR`, on the driver's machine. With journal=off, runs keep no journal."
        )
    return path


def look(
    parsed: argparse.Namespace,
    reading: Callable[[opening.Opened | None], T],
    with_data_dir: bool = False,
) -> T:
    """Call ``reading`` with the state, as ``opening.look`` does. ``with_data_dir``: the data
    directory has more than the state, and may be named beside an ensemble."""
    return opening.look(reading, _place(parsed, with_data_dir=with_data_dir))


@contextlib.contextmanager
def changing(parsed: argparse.Namespace) -> Iterator[opening.Opened]:
    """The state that the options name, to change it. It must exist."""
    with opening.owned(_place(parsed)) as opened:
        yield opening.require(opened, data_dir(parsed))


def print_change(parsed: argparse.Namespace, change: Callable[[opening.Opened], str]) -> int:
    """As :func:`print_change_of_run`, for the state that the options name, which must exist."""
    return print_change_of_run(
        parsed,
        None,
        lambda opened, _: change(opening.require(opened, data_dir(parsed))),
    )


def print_change_of_run(
    parsed: argparse.Namespace,
    settings: config.Config | None,
    change: Callable[[opening.Opened | None, str], str],
) -> int:
    """Call ``change`` with the state of a run with ``settings``, by default the options', or None
    without a state, and with the place of the state. Print the returned text. Without
    ``--execute`` the state is only read, and no run waits for the reader. Returns the exit
    code."""
    place = _place(parsed, settings)
    location = str(place.data_dir if place.zookeeper is None else place.zookeeper)
    if parsed.execute:
        with opening.owned(place) as opened:
            text = change(opened, location)
    else:
        text = opening.look(lambda opened: change(opened, location), place)
    return print_changes(parsed, text)


def _place(
    parsed: argparse.Namespace, settings: config.Config | None = None, with_data_dir: bool = False
) -> opening.Place:
    if parsed.data_dir is not None and parsed.zookeeper is not None and not with_data_dir:
        raise errors.UsageError(
            "the state is either in --data-dir or in --zookeeper\n  Give only one option."
        )
    if parsed.data_dir is not None and not parsed.data_dir.is_dir():
        raise errors.UsageError(
            f"there is no directory {parsed.data_dir}\n  Give the runs' data directory."
        )
    settings = settings or where(parsed)
    return opening.Place(
        settings.data_dir or Path(directory.DEFAULT),
        settings.zookeeper,
        settings.zookeeper_root,
        credentials.of(settings),
    )


def print_changes(parsed: argparse.Namespace, text: str) -> int:
    """Print the changes, done or to do, and the option that does them. Returns the exit code."""
    document = {"executed": parsed.execute, "changes": text.splitlines()}
    if not parsed.execute:
        text += "\nnothing was changed: type the same command with --execute to do it"
    return output.show(parsed, document, text)
