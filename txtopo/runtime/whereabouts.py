"""Where the state of topologies is, as somebody at the command line says, and how to get there.

Apart from the commands because those about states and those about stores ask alike.

Runs on: driver.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from txtopo import config, errors
from txtopo.runtime import inspection, options, spark_settings
from txtopo.state import credentials, directory

DRY_RUN = "Without --execute nothing is changed: what would be is printed.\n"
"""For the help of commands that change something."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where the state is."""
    group = parser.add_argument_group("where the state is")
    group.add_argument("--data-dir", type=Path, metavar="DIR", help=f"data directory of the runs (default: as set, or {directory.DEFAULT})")
    group.add_argument("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="the ensemble the runs were given (default: as set)")
    group.add_argument("--zookeeper-root", metavar="PATH", help="the setting zookeeper_root of the runs (default: as set, or /txtopo)")
    options.add_verbose(parser)


def add_execute(parser: argparse.ArgumentParser) -> None:
    """The option without which nothing is changed."""
    parser.add_argument("--execute", action="store_true", help="do it")


def where(given: argparse.Namespace) -> config.Config:
    """The settings that say where the state is; a run that is started here has the same, unless its code says otherwise."""
    return options.config_of(given, None, None, spark_settings.of_this_process())


def data_dir(given: argparse.Namespace) -> Path:
    """The data directory, where no ensemble is given."""
    return where(given).data_dir or Path(directory.DEFAULT)


def opened(given: argparse.Namespace) -> Any:
    """The state, as ``inspection.opened`` opens it."""
    if given.data_dir is not None and given.zookeeper is not None:
        raise errors.UsageError("the state is either in --data-dir or in --zookeeper\n  Give one of them.")
    if given.data_dir is not None and not given.data_dir.is_dir():
        raise errors.UsageError(f"there is no directory {given.data_dir}\n  Give the data directory that the runs were given.")
    settings = where(given)
    return inspection.opened(data_dir(given), settings.zookeeper, settings.zookeeper_root, credentials.of(settings))


def say_how_to_execute(given: argparse.Namespace) -> int:
    """The exit code, after what was only said and not done."""
    if not given.execute:
        print("nothing was changed; the same command with --execute does it")
    return 0
