"""The command ``txtopo``: run, explain and look after topologies.

Results go to standard output, progress and errors to standard error. What a command does is elsewhere: ``runtime.main`` runs a topology,
``runtime.inspection`` looks at stored state, ``runtime.upkeep`` changes it, ``runtime.store_commands`` is about results. Here is only what can be
typed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import txtopo
from txtopo import errors
from txtopo.config import display
from txtopo.plan import compiler, explain, guarantees
from txtopo.runtime import inspection, options, session, spark_settings, store_commands, submit, submit_process, target, upkeep, whereabouts
from txtopo.runtime import main as running
from txtopo.runtime import run as runs
from txtopo.state import administration
from txtopo.testing import command as testing

TARGET_HELP = "package.module, file.py, either with :attribute, or module:factory('argument'); the default attribute is `topology`"

MASTERS = ("local", "spark://", "yarn", "k8s://")
"""How the address of a Spark master may begin."""

_DESCRIPTION = "Transactional topologies on Apache Spark: exactly-once batches, processed side by side, committed in order."
_EXAMPLES = """\
examples:
  txtopo run words.py                        run the topology in words.py, until it is stopped
  txtopo run words.py --until-exhausted      … or until its input ends
  txtopo submit words.py --master yarn       run it on a cluster, through spark-submit
  txtopo explain words.py                    what would run where
  txtopo validate words.py --master yarn     whether it can be right there, and what it then promises
  txtopo test words.py --seeds 500           whether its results are right whatever fails
  txtopo status                              which topologies there are, and how far they have come
  txtopo state reset word-count              what it would take to begin with the first batch
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Names may be in any script; a terminal that cannot show one must not end the command.
            stream.reconfigure(errors="backslashreplace")

    def do_it() -> int:
        ours, theirs = submit.split(arguments) if arguments[:1] == ["submit"] else (arguments, [])
        given = _parser().parse_args(ours)
        given.ours, given.theirs = ours[1:], theirs
        do: Callable[[argparse.Namespace], int] = given.do
        code = do(given)
        sys.stdout.flush()
        return code

    return running.exit_code_of(do_it, verbose=running.is_verbose(arguments))


# -- what can be typed -----------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = options.Parser(prog="txtopo", description=_DESCRIPTION, epilog=f"{_EXAMPLES}\n{options.EXIT_CODES}")
    parser.add_argument("--version", action="version", version=f"txtopo {txtopo.__version__}")
    parser.set_defaults(do=_help_of(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=options.Parser)

    run = commands.add_parser("run", help="run a topology", description="Run a topology, from where its last run stopped.", epilog=options.RUN_EPILOG)
    run.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    options.add_run_options(run)
    run.set_defaults(do=_run)

    submitted = commands.add_parser(
        "submit", help="run a topology on a cluster", epilog=f"{submit.EPILOG}\n{options.RUN_EPILOG}",
        usage="%(prog)s TARGET --master URL [options] [-- options of spark-submit]",
        description="Give a topology to spark-submit, with its code and the settings it needs, from where its last run stopped.",
    )  # fmt: skip
    submitted.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    options.add_run_options(submitted)
    submit.add_options(submitted)
    submitted.set_defaults(do=_submit)

    explained = commands.add_parser(
        "explain", help="show what runs where", description="Show the plan of a topology: levels, shuffles, and what waits for the commit."
    )
    explained.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    explained.add_argument("--master", default="local[2]", metavar="URL", help="plan for this Spark master (default: %(default)s)")
    explained.add_argument("--cores", type=int, metavar="N", help="how many cores there are, if the master does not say so")
    explained.add_argument("--format", choices=("text", "mermaid"), default="text", help="as text, or as a Mermaid flow chart (default: %(default)s)")
    options.add_verbose(explained)
    explained.set_defaults(do=_explain)

    validated = commands.add_parser(
        "validate", help="whether a topology can be right", epilog=options.EXIT_CODES,
        description="Refuse a topology that cannot count exactly once; say of one that can what it promises of each store and sink.",
    )  # fmt: skip
    validated.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    validated.add_argument("--master", default="local[*]", metavar="URL", help="the Spark master it is to run on (default: %(default)s)")
    options.add_verbose(validated)
    validated.set_defaults(do=_validate)

    tested = commands.add_parser(
        "test", help="let everything fail that can, in simulated Spark", description=testing.DESCRIPTION, epilog=options.EXIT_CODES
    )
    tested.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    testing.add_arguments(tested)
    tested.set_defaults(do=testing.run)

    _add_config_commands(commands)

    status = commands.add_parser(
        "status", help="show how far topologies have come", description="Show how far topologies have come, while they run or not."
    )
    status.add_argument("topology", metavar="TOPOLOGY_ID", nargs="?", help="only this one")
    _add_json(status)
    whereabouts.add_options(status)
    status.set_defaults(do=_status)

    _add_state_commands(commands)
    store_commands.add(commands, _help_of)
    return parser


def _add_config_commands(commands: Any) -> None:
    settings = commands.add_parser("config", help="look at the settings", description="Settings: where they come from, and what they are.")
    settings.set_defaults(do=_help_of(settings))
    actions = settings.add_subparsers(title="commands", metavar="COMMAND", parser_class=options.Parser)

    show = actions.add_parser(
        "show", help="show all of them", description="Show every setting, as a run that is started here and now would have it."
    )
    show.add_argument("target", metavar="TARGET", nargs="?", help=f"with what its code sets; {TARGET_HELP}")
    show.add_argument("--origin", action="store_true", help="also where each comes from")
    options.add_set(show)
    _add_json(show)
    options.add_verbose(show)
    show.set_defaults(do=_config_show)


def _add_state_commands(commands: Any) -> None:
    state = commands.add_parser(
        "state", help="look at the state of a topology, or start it over", description="The state of a topology: what ZooKeeper remembers of it."
    )
    state.set_defaults(do=_help_of(state))
    actions = state.add_subparsers(title="commands", metavar="COMMAND", parser_class=options.Parser)

    show = actions.add_parser(
        "show", help="show all of it", description="Show everything that is stored of a topology, also what cannot be understood."
    )
    show.add_argument("topology", metavar="TOPOLOGY_ID")
    _add_json(show)
    whereabouts.add_options(show)
    show.set_defaults(do=_state_show)

    reset = actions.add_parser(
        "reset", help="remove it", epilog=whereabouts.DRY_RUN,
        description="Remove the state of a topology that is not running: its next run begins with the first batch.",
    )  # fmt: skip
    reset.add_argument("topology", metavar="TOPOLOGY_ID")
    whereabouts.add_execute(reset)
    whereabouts.add_options(reset)
    reset.set_defaults(do=_state_reset)


    restored = actions.add_parser(
        "restored", help="say that it comes from a copy", epilog=whereabouts.DRY_RUN,
        description="Say that ZooKeeper, or the data directory, was restored from a copy: attempts of the next run get numbers that none before had.",
    )  # fmt: skip
    restored.add_argument("topology", metavar="TOPOLOGY_ID")
    whereabouts.add_execute(restored)
    whereabouts.add_options(restored)
    restored.set_defaults(do=_state_restored)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def show(given: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show


# -- what is done ----------------------------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    found = target.resolve(given.target)
    return running.run(found.topology, running.settings_of(given, found.conf, found.topology), given, found.directory)


def _submit(given: argparse.Namespace) -> int:
    line = submit.line_of(given, given.ours, given.theirs)
    for note in line.notes:
        print(f"txtopo: {note}", file=sys.stderr)
    if given.only_print:
        print(line.text)
        return 0
    return submit_process.run(line.arguments, submit.PROGRAM)


def _explain(given: argparse.Namespace) -> int:
    cores = _cores(given.master, given.cores)
    graph = target.resolve(given.target).topology
    runs.refuse_local_only(graph, given.master)
    plan = compiler.compile_plan(graph, cores)
    print(explain.mermaid(plan) if given.format == "mermaid" else _as_typed(explain.explain(plan)), end="")
    return 0


def _cores(master: str, given: int | None) -> int:
    try:
        cores = session.local_cores(master)
        if cores is None:
            cores = given
    except ValueError:
        cores = None
    if cores is None or cores < 1:
        raise errors.UsageError(
            f"--master {master} does not say how many cores there are\n  Give local[N] or local[*]; or --cores N, with N the cores of the cluster."
        )
    return cores


def _validate(given: argparse.Namespace) -> int:
    graph = target.resolve(given.target).topology
    if not given.master.startswith(MASTERS) or _is_malformed(given.master):
        raise errors.UsageError(f"--master {given.master!r} is no Spark master\n  Give local[N], local[*], spark://HOST:7077, yarn or k8s://….")
    runs.refuse_local_only(graph, given.master)
    print(_as_typed("\n".join([f"topology {graph.id} is valid with master {given.master}", *guarantees.lines(graph)])))
    return 0


def _is_malformed(master: str) -> bool:
    try:
        session.local_cores(master)
    except ValueError:
        return True
    return False


def _as_typed(text: str) -> str:
    """``text`` with the files below the current directory as people call them."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")


def _config_show(given: argparse.Namespace) -> int:
    found = target.resolve(given.target) if given.target is not None else None
    code, topology = (found.conf, found.topology) if found is not None else (None, None)
    resolved = options.resolved(given, code, topology, spark_settings.of_this_process())
    if given.json:
        print(json.dumps({"settings": display.as_data(resolved)}, indent=2, ensure_ascii=False))
    else:
        print(display.as_text(resolved, given.origin))
    return 0


def _status(given: argparse.Namespace) -> int:
    with whereabouts.opened(given) as opened:
        if opened is None and given.topology is not None:
            raise errors.UsageError(inspection.nothing_stored(whereabouts.data_dir(given)))
        ids = [given.topology] if given.topology is not None else administration.topologies(opened.store) if opened is not None else []
        statuses = [inspection.status_of(opened, id) for id in ids]
    if given.json:
        print(json.dumps({"topologies": statuses}, indent=2, ensure_ascii=False))
    elif statuses:
        print("\n\n".join(inspection.status_text(status) for status in statuses))
    else:
        print(f"no topology has state in {opened.where}" if opened is not None else inspection.nothing_stored(whereabouts.data_dir(given)))
    return 0


def _state_show(given: argparse.Namespace) -> int:
    with whereabouts.opened(given) as opened:
        found = inspection.require(opened, whereabouts.data_dir(given))
        shown = administration.show(found.store, given.topology)
    print(json.dumps(shown, indent=2, ensure_ascii=False) if given.json else inspection.state_text(shown, found.is_live))
    return 0


def _state_reset(given: argparse.Namespace) -> int:
    with whereabouts.opened(given) as opened:
        print(upkeep.reset_state(inspection.require(opened, whereabouts.data_dir(given)), given.topology, given.execute))
    return whereabouts.say_how_to_execute(given)


def _state_restored(given: argparse.Namespace) -> int:
    with whereabouts.opened(given) as opened:
        print(upkeep.restored_state(inspection.require(opened, whereabouts.data_dir(given)), given.topology, given.execute))
    return whereabouts.say_how_to_execute(given)
