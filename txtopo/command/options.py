"""A run's options on the command line, equal for ``txtopo run``, ``python file.py`` and
``spark-submit file.py``. ``--set`` reaches every setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from txtopo import config, errors
from txtopo.topology import redaction
from txtopo.topology.graph import TopologyGraph

EXIT_CODES = """\
exit codes:
  0  done, or stopped as asked
  1  an error in the topology
  2  wrong usage, or an invalid topology
  3  one batch failed max_attempts times
  4  another coordinator holds, or took, the topology, or the data directory is in use
  5  ZooKeeper cannot be reached, or does not let us in, or the data directory's disk is full
  6  ZooKeeper and a store do not belong together
  7  `txtopo test TARGET` saw no violation, and could not look at all effects
  130 (143)  ended at once by the second Ctrl-C (SIGTERM)
  141  the output has no reader any more, as in `txtopo … | head`
"""

_SIGNALS = """\
Ctrl-C (or SIGTERM) finishes the commits in flight and stops. A second Ctrl-C stops at once. Either way the next run resumes
where this run stopped, and counts nothing twice.
"""

RUN_EPILOG = f"{_SIGNALS}\n{EXIT_CODES}"


class Parser(argparse.ArgumentParser):
    """Raises :class:`UsageError` where argparse would end the process. Takes no abbreviated
    options."""

    def __init__(self, **more: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, **more)

    def add_commands(self) -> Any:
        """Take a command as next argument, and show the help if there is none. Returns the object
        whose ``add_parser`` adds a command."""
        self.set_defaults(do=self._show_help)
        return self.add_subparsers(title="commands", metavar="COMMAND")

    def _show_help(self, parsed: argparse.Namespace) -> int:
        self.print_help()
        return 0

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            near = get_close_matches(str(value), list(action.choices), n=1)
            cure = (
                f"Did you mean `{self.prog} {near[0]}`?"
                if near
                else f"There are {', '.join(action.choices)}."
            )
            raise errors.UsageError(
                f"there is no command `{self.prog} {value}`\n  {cure} `{self.prog} --help` describes the commands."
            )
        super()._check_value(action, value)

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse would ignore that help, or a version, could not be written.
        if message and file is not None:
            file.write(message)

    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(f"{message}\n  `{self.prog} --help` shows all options.")


def at_least_one(text: str) -> int:
    """An option's type: a whole number of at least 1."""
    number = int(text) if text.strip().isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add a run's options to ``parser``."""
    ends = parser.add_argument_group("when to end (default: run until stopped)")
    ends.add_argument(
        "--until-exhausted",
        action="store_true",
        help="end when the spout has no more data, and all data is committed",
    )
    ends.add_argument(
        "--max-transactions",
        type=at_least_one,
        metavar="N",
        help="end when this run has committed N transactions",
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--master",
        metavar="URL",
        help="Spark master (default: local[*]). Inside spark-submit, give --master to spark-submit",
    )
    where.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="a ZooKeeper ensemble (default: our own, in the data directory)",
    )
    where.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where our own ZooKeeper keeps its data (default: .txtopo)",
    )
    titled = parser.add_argument_group(
        "if another coordinator holds the topology (default: end with exit code 4)"
    )
    held = titled.add_mutually_exclusive_group()
    wait = "wait until that coordinator has ended or died, then go on where it stopped"
    take = "take the topology at once: that coordinator can write no more"
    held.add_argument("--standby", action="store_const", const="wait", dest="on_held", help=wait)
    held.add_argument("--takeover", action="store_const", const="take", dest="on_held", help=take)
    add_page(parser.add_argument_group("a page for the browser"))
    more = parser.add_argument_group("more")
    more.add_argument("--name", help="name of the run (default: the topology's id)")
    more.add_argument(
        "--log-format",
        choices=("text", "json"),
        help="the form of all lines, also of context.log (default: text)",
    )
    more.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark's, such as spark.ui.enabled=true (repeatable). Inside spark-submit, give --conf to spark-submit",
    )
    add_set(more)
    add_verbose(more)


def add_page(parser: argparse._ActionsContainer, default: str | None = None) -> None:
    """Add the options that say where the page is served."""
    parser.add_argument(
        "--page",
        metavar="[HOST:]PORT",
        default=default,
        help="serve a page that shows the run in a browser, on 127.0.0.1 unless HOST is given. Port 0 is any free port",
    )
    parser.add_argument(
        "--page-token-file",
        type=Path,
        metavar="FILE",
        help="the page's token, in a file of mode 0600 (default: a random token). Needed for a HOST that other machines reach",
    )


def add_set(parser: argparse._ActionsContainer) -> None:
    """Add ``--set``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any txtopo.Config setting, such as max_spout_pending=5, message_timeout_s=2m or until=null (repeatable, wins over the code's value)",
    )


def add_verbose(parser: argparse._ActionsContainer) -> None:
    """Add ``-v``."""
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the Python traceback of an error"
    )


def resolved(
    options: argparse.Namespace,
    code: config.Config | Mapping[str, Any] | None,
    topology: TopologyGraph | None = None,
    spark: Mapping[str, str] | None = None,
) -> config.Resolved:
    """The settings, each with its origin. Named options win over ``--set``, which wins over the
    code, which wins over Spark's configuration, the environment and the file."""
    typed: dict[str, Any] = {}
    for text in getattr(options, "settings", []):
        key, value = _assignment(text, "--set", "`txtopo config show` lists the keys.")
        typed[key] = value
    named = {
        "until": "exhausted" if getattr(options, "until_exhausted", False) else None,
        "log_format": getattr(options, "log_format", None),
        **{
            name: getattr(options, name, None)
            for name in ("max_transactions", "zookeeper", "zookeeper_root", "data_dir", "on_held")
        },
    }
    typed |= {key: value for key, value in named.items() if value is not None}
    return config.resolve(
        code,
        command_line=typed,
        spout=topology.spout.config if topology is not None else None,
        spark=spark,
    )


def spark_conf_of(options: argparse.Namespace) -> dict[str, str]:
    """Spark's settings from ``--spark-conf``."""
    cure = "Spark's documentation lists the keys."
    settings = [_assignment(text, "--spark-conf", cure) for text in options.spark_conf]
    if any(key == "spark.master" for key, _ in settings):
        raise errors.ConfigError("--spark-conf does not take spark.master\n  Give --master.")
    return dict(settings)


def _assignment(text: str, option: str, cure: str) -> tuple[str, str]:
    """``key=value`` from the command line."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise errors.ConfigError(
            f"{option} takes key=value, not {redaction.redacted(text, text)!r}\n  {cure}"
        )
    return key, value
