"""Options of the command line that say where the state of topologies is, and the connection to that
state.

Apart from the commands because those about states and those about stores ask alike.

Runs on: driver.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from txtopo import config, errors
from txtopo.command import options
from txtopo.spark import settings as spark_settings
from txtopo.state import credentials, directory, opening

T = TypeVar("T")

DRY_RUN = "Without --execute nothing is changed: what would be is printed.\n"
"""A line for the help of commands that change state or stores."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where the state is."""
    group = parser.add_argument_group("where the state is")
    group.add_argument("--data-dir", type=Path, metavar="DIR", help=f"data directory of the runs (default: as set, or {directory.DEFAULT})")
    group.add_argument("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="the ensemble the runs were given (default: as set)")
    group.add_argument("--zookeeper-root", metavar="PATH", help="the setting zookeeper_root of the runs (default: as set, or /txtopo)")
    options.add_verbose(parser)


def add_execute(parser: argparse.ArgumentParser) -> None:
    """Add ``--execute``, without which nothing is changed."""
    parser.add_argument("--execute", action="store_true", help="do it")


def where(given: argparse.Namespace) -> config.Config:
    """The settings that say where the state is; a run that is started here has the same, unless its
    code says otherwise."""
    return options.config_of(given, None, None, spark_settings.of_this_process())


def data_dir(given: argparse.Namespace) -> Path:
    """The data directory, where no ensemble is given."""
    return where(given).data_dir or Path(directory.DEFAULT)


def look(given: argparse.Namespace, reading: Callable[[opening.Opened | None], T]) -> T:
    """``reading`` of the state, by ``inspection.look``."""
    return opening.look(reading, *_place(given))


def owned(given: argparse.Namespace) -> contextlib.AbstractContextManager[opening.Opened | None]:
    """The state for a command that changes it, by ``inspection.owned``."""
    return opening.owned(*_place(given))


def changed(given: argparse.Namespace, change: Callable[[opening.Opened], T]) -> T:
    """``change`` of the state, which must exist. Without ``--execute`` the state is only read, and no
    run waits for the reader."""
    if not given.execute:
        return look(given, lambda found: change(opening.require(found, data_dir(given))))
    with owned(given) as found:
        return change(opening.require(found, data_dir(given)))


def changed_as(given: argparse.Namespace, settings: config.Config, change: Callable[[opening.Opened | None, str], T]) -> T:
    """``change`` of the state that a run with ``settings`` has, if there is any, and of the place
    it is looked for."""
    place = _place(given, settings)
    where = str(place[0] if settings.zookeeper is None else settings.zookeeper)
    if not given.execute:
        return opening.look(lambda found: change(found, where), *place)
    with opening.owned(*place) as found:
        return change(found, where)


def _place(given: argparse.Namespace, settings: config.Config | None = None) -> tuple[Path, str | None, str, credentials.Credentials | None]:
    if given.data_dir is not None and given.zookeeper is not None:
        raise errors.UsageError("the state is either in --data-dir or in --zookeeper\n  Give one of them.")
    if given.data_dir is not None and not given.data_dir.is_dir():
        raise errors.UsageError(f"there is no directory {given.data_dir}\n  Give the data directory that the runs were given.")
    settings = settings or where(given)
    return settings.data_dir or Path(directory.DEFAULT), settings.zookeeper, settings.zookeeper_root, credentials.of(settings)


def say_how_to_execute(given: argparse.Namespace) -> int:
    """Tell the option that executes a change which was only printed; the exit code."""
    if not given.execute:
        print("nothing was changed; the same command with --execute does it")
    return 0
