"""The command ``txtopo``: run, explain and look after topologies.

Results go to standard output, progress and errors to standard error. This module names the commands
and their options. Other modules do the work: ``command.main`` runs a topology,
``command.show_state`` shows stored state, ``command.maintain`` changes stored state, and
``command.store_commands`` is about results.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import txtopo
from txtopo import demo, errors
from txtopo.command import (
    check,
    doctor,
    export_commands,
    history,
    maintain,
    new,
    options,
    output,
    page_commands,
    request_commands,
    reset,
    show_state,
    simulate,
    sink_commands,
    store_commands,
    submit,
    submit_process,
    target,
    top,
    whereabouts,
)
from txtopo.command import main as running
from txtopo.config import display
from txtopo.journal import recording
from txtopo.plan import compiler, explain, guarantees
from txtopo.runtime import run as runs
from txtopo.spark import session
from txtopo.spark import settings as spark_settings
from txtopo.state import acceptance, administration, components, opening
from txtopo.topology import pickling, redaction
from txtopo.topology.graph import SPOUT_TRAITS, TopologyGraph

TARGET_HELP = "package.module, file.py, either with :attribute, or module:factory('argument'); the default attribute is `topology`"

MASTERS = ("local", "spark://", "yarn", "k8s://")
"""The beginnings of a Spark master's address."""

_DESCRIPTION = "Transactional topologies on Apache Spark: exactly-once batches, processed side by side, committed in order."
_EXAMPLES = """\
examples:
  txtopo doctor                              check whether a run can start here, and name missing packages
  txtopo new mine                            write a topology, its test and its data into the directory mine
  txtopo demo                                watch a topology count, before you write code
  txtopo run words.py                        run the topology in words.py, until it is stopped
  txtopo run words.py --until-exhausted      … or until its input ends
  txtopo submit words.py --master yarn       run the topology on a cluster, through spark-submit
  txtopo explain words.py                    show which component runs where
  txtopo validate words.py --master yarn     check whether the topology can count exactly once there
  txtopo test words.py --seeds 500           check the results under simulated failures
  txtopo status                              list the topologies, and their progress
  txtopo top                                 watch a run: its transactions side by side
  txtopo why word-count 17                   show batch, attempts and errors of transaction 17
  txtopo state reset word-count              show the steps to begin with the first batch again
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Names may be in any script. A terminal that cannot show a name must not end the
            # command.
            stream.reconfigure(errors="backslashreplace")

    def do_it() -> int:
        ours, theirs = submit.split(arguments) if arguments[:1] == ["submit"] else (arguments, [])
        parsed = _parser().parse_args(export_commands.completed(list(ours)))
        parsed.ours, parsed.theirs = ours[1:], theirs
        do: Callable[[argparse.Namespace], int] = parsed.do
        return do(parsed)

    return running.exit_code_of(do_it, verbose=running.is_verbose(arguments))


# -- the arguments -------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = options.Parser(
        prog="txtopo", description=_DESCRIPTION, epilog=f"{_EXAMPLES}\n{options.EXIT_CODES}"
    )
    parser.add_argument("--version", action="version", version=f"txtopo {txtopo.__version__}")
    commands = parser.add_commands()

    written = commands.add_parser(
        "new",
        help="write a topology to begin with",
        description=new.DESCRIPTION,
        epilog=options.EXIT_CODES,
    )
    new.add_arguments(written)
    options.add_verbose(written)
    written.set_defaults(do=new.run)

    checked = commands.add_parser(
        "doctor",
        help="check whether a run can start here",
        description=doctor.DESCRIPTION,
        epilog=doctor.EXIT_CODES,
    )
    doctor.add_arguments(checked)
    output.add_json(checked)
    options.add_verbose(checked)
    checked.set_defaults(do=doctor.run)

    demonstrated = commands.add_parser(
        "demo",
        help="count every word of Python's own library",
        epilog=options.EXIT_CODES,
        description="Count every word of Python's own library, exactly once, and compare with a plain count. Interrupt the demo, and start it\n"
        f"again: the count goes on where it stopped. State and results are in {demo.DATA_DIR}. To start over, remove that directory.",
    )
    demonstrated.add_argument("--master", metavar="URL", help="Spark master (default: local[*])")
    options.add_verbose(demonstrated)
    demonstrated.set_defaults(do=_demo)

    run = commands.add_parser(
        "run",
        help="run a topology",
        description="Run a topology, from where its last run stopped.",
        epilog=options.RUN_EPILOG,
    )
    run.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    options.add_run_options(run)
    run.set_defaults(do=_run)

    submitted = commands.add_parser(
        "submit",
        help="run a topology on a cluster",
        epilog=f"{submit.EPILOG}\n{options.RUN_EPILOG}",
        usage="%(prog)s TARGET --master URL [options] [-- options of spark-submit]",
        description="Give a topology to spark-submit, with its code and the settings it needs, from where its last run stopped.",
    )
    submitted.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    options.add_run_options(submitted)
    submit.add_options(submitted)
    submitted.set_defaults(do=_submit)

    explained = commands.add_parser(
        "explain",
        help="show which component runs where",
        description="Show a topology's plan: levels, shuffles, and the components that wait for the commit.",
    )
    explained.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    explained.add_argument(
        "--master",
        default="local[2]",
        metavar="URL",
        help="plan for this Spark master (default: %(default)s)",
    )
    explained.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="the number of cores, if the master does not tell",
    )
    form = explained.add_mutually_exclusive_group()
    output.add_json(form)
    form.add_argument(
        "--format",
        choices=("text", "mermaid"),
        default="text",
        help="as text, or as a Mermaid flow chart (default: %(default)s)",
    )
    options.add_verbose(explained)
    explained.set_defaults(do=_explain)

    validated = commands.add_parser(
        "validate",
        help="check whether a topology can count exactly once",
        epilog=options.EXIT_CODES,
        description="Refuse a topology that cannot count exactly once. For any other topology, show the guarantee for each store and sink.",
    )
    validated.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    validated.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="the Spark master that is to run the topology (default: %(default)s)",
    )
    validated.add_argument(
        "--connect",
        action="store_true",
        help="also ask stores, databases, storages and brokers whether they are there",
    )
    output.add_json(validated)
    options.add_verbose(validated)
    validated.set_defaults(do=_validate)

    tested = commands.add_parser(
        "test",
        help="simulate failures, and check the results",
        description=simulate.DESCRIPTION,
        epilog=simulate.EXIT_CODES,
    )
    tested.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    simulate.add_arguments(tested)
    tested.set_defaults(do=simulate.run)

    _add_config_commands(commands)

    status = commands.add_parser(
        "status",
        help="show how far topologies have come",
        description="Show how far topologies have come, while they run or not.",
    )
    status.add_argument("topology", metavar="TOPOLOGY_ID", nargs="?", help="only this topology")
    form = status.add_mutually_exclusive_group()
    output.add_json(form)
    form.add_argument(
        "--check",
        type=check.conditions,
        metavar="CONDITIONS",
        help="print one line for each topology, and end with exit code 1 unless all conditions are met, as in 'age<300 attempts<5'. "
        f"Fields: {', '.join(check.FIELDS)}",
    )
    whereabouts.add_options(status)
    status.set_defaults(do=_status)

    request_commands.add(commands)
    top.add(commands)
    page_commands.add(commands)
    history.add(commands)

    resetting = commands.add_parser(
        "reset",
        help="start a topology over, with its state and stores",
        description="Remove a topology's state, and its results in its stores, unless the topology is running. Its next run begins\n"
        "with the first batch.",
    )
    resetting.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    resetting.add_argument(
        "--leave-rows",
        action="store_true",
        help="also if rows from sinks stay in your tables or topics",
    )
    whereabouts.add_execute(resetting)
    options.add_set(resetting)
    whereabouts.add_options(resetting)
    resetting.set_defaults(do=_reset)

    _add_state_commands(commands)
    store_commands.add(commands)
    sink_commands.add_kafka(commands)
    sink_commands.add_files(commands)
    export_commands.add(commands)
    return parser


def _add_config_commands(commands: Any) -> None:
    settings = commands.add_parser(
        "config",
        help="look at the settings",
        description="Settings, their values and their sources.",
    )
    actions = settings.add_commands()

    show = actions.add_parser(
        "show",
        help="show all settings",
        description="Show every setting, as a run that is started here and now would have it.",
    )
    show.add_argument(
        "target", metavar="TARGET", nargs="?", help=f"include the code's settings; {TARGET_HELP}"
    )
    show.add_argument("--origin", action="store_true", help="also show each setting's source")
    options.add_set(show)
    output.add_json(show)
    options.add_verbose(show)
    show.set_defaults(do=_config_show)


def _add_state_commands(commands: Any) -> None:
    state = commands.add_parser(
        "state",
        help="look at a topology's state, or start over",
        description="A topology's state: its records in ZooKeeper.",
    )
    actions = state.add_commands()

    show = actions.add_parser(
        "show",
        help="show the whole state",
        description="Show a topology's whole stored state, also unreadable records.",
    )
    show.add_argument("topology", metavar="TOPOLOGY_ID")
    output.add_json(show)
    whereabouts.add_options(show)
    show.set_defaults(do=_state_show)

    reset = actions.add_parser(
        "reset",
        help="remove the state",
        description="Remove a topology's state, unless the topology is running. Its next run begins with the first batch.",
    )
    reset.add_argument("topology", metavar="TOPOLOGY_ID")
    whereabouts.add_execute(reset)
    whereabouts.add_options(reset)
    reset.set_defaults(do=_state_reset)

    accept = actions.add_parser(
        "accept",
        help="accept that the topology has changed",
        description="Accept that a topology has changed since its last run: the next run goes on with another spout, begins a store, or\n"
        "completes the sealed transaction with other components. A refused run names the command to type.",
    )
    accept.add_argument("topology", metavar="TOPOLOGY_ID")
    accept.add_argument(
        "--store",
        metavar="COMPONENT/STORE",
        action="append",
        default=[],
        help="the component may begin this store, although it has results in other stores (repeatable, and * stands for any text)",
    )
    accept.add_argument(
        "--spout",
        metavar="ID",
        help="this spout goes on from the last spout's positions (with --kind)",
    )
    accept.add_argument("--kind", choices=tuple(SPOUT_TRAITS), help="the kind of that spout")
    accept.add_argument(
        "--sealed",
        action="store_true",
        help="complete the sealed transaction, although the components have changed since its begin",
    )
    whereabouts.add_execute(accept)
    whereabouts.add_options(accept)
    accept.set_defaults(do=_state_accept)

    restored = actions.add_parser(
        "restored",
        help="say that the state comes from a copy",
        description="Say that ZooKeeper, or the data directory, was restored from a copy: the next run's attempts get numbers\n"
        "that no attempt had before.",
    )
    restored.add_argument("topology", metavar="TOPOLOGY_ID")
    whereabouts.add_execute(restored)
    whereabouts.add_options(restored)
    restored.set_defaults(do=_state_restored)


# -- the commands --------------------------------------------------------------------------------


def _run(parsed: argparse.Namespace) -> int:
    loaded = target.resolve(parsed.target)
    return running.run(
        loaded.topology, running.settings_of(parsed, loaded.conf, loaded.topology), parsed
    )


def _demo(parsed: argparse.Namespace) -> int:
    master = [] if parsed.master is None else ["--master", parsed.master]
    as_run = _parser().parse_args(
        ["run", str(demo.FILE), "--until-exhausted", "--data-dir", demo.DATA_DIR, *master]
    )
    loaded = target.resolve(as_run.target)

    def report() -> int:
        print()
        code: int = loaded.module.main_report()
        return code

    return running.run(
        loaded.topology, running.settings_of(as_run, loaded.conf, loaded.topology), as_run, report
    )


def _submit(parsed: argparse.Namespace) -> int:
    line = submit.line_of(parsed, parsed.ours, parsed.theirs)
    for note in line.notes:
        print(f"txtopo: {note}", file=sys.stderr)
    if parsed.only_print:
        print(line.text)
        return 0
    return submit_process.run(line.arguments, submit.PROGRAM)


def _explain(parsed: argparse.Namespace) -> int:
    cores = _cores(parsed.master, parsed.cores)
    graph = target.resolve(parsed.target).topology
    runs.refuse_local_only(graph, parsed.master)
    plan = compiler.compile_plan(graph, cores)
    if parsed.json:
        output.print_json(explain.as_data(plan))
        return 0
    print(
        explain.mermaid(plan) if parsed.format == "mermaid" else _as_typed(explain.explain(plan)),
        end="",
    )
    return 0


def _cores(master: str, asked: int | None) -> int:
    local = session.local_cores(master)
    cores = asked if local is None else local
    if cores is None or cores < 1:
        raise errors.UsageError(
            f"--master {redaction.redacted(master)} does not say how many cores there are\n"
            "  Give local[N] or local[*], or give the cluster's cores with --cores N."
        )
    return cores


def _validate(parsed: argparse.Namespace) -> int:
    graph = target.resolve(parsed.target).topology
    master = redaction.redacted(parsed.master)
    if not parsed.master.startswith(MASTERS):
        raise errors.UsageError(
            f"--master {master!r} is no Spark master\n  Give local[N], local[*], spark://HOST:7077, yarn or k8s://…."
        )
    # Refuses a master whose number of cores cannot be read.
    session.local_cores(parsed.master)
    runs.refuse_local_only(graph, parsed.master)
    if parsed.connect:
        try:
            _connect(graph)
        except errors.FailedException as error:
            raise errors.UsageError(f"{error}\n  Try again when it can be reached.") from error
    promises = [_as_typed(line) for line in guarantees.lines(graph)]
    return output.show(
        parsed,
        {"topology_id": graph.id, "master": master, "guarantees": promises},
        "\n".join([f"topology {graph.id} is valid with master {master}", *promises]),
    )


def _connect(graph: TopologyGraph) -> None:
    """Ask every source and destination in ``graph``. Makes nothing."""
    for component in graph.components.values():
        connector: Any = pickling.loads(component.template)
        getattr(connector, "check_source", lambda: None)()
        check = getattr(connector, "check_destination", lambda fields: None)
        for subscription in component.inputs:
            check(graph.components[subscription.source].outputs[subscription.stream].fields)
    for kept in reset.places_of(graph).kept.values():
        kept.shown()


def _as_typed(text: str) -> str:
    """``text`` with relative paths for files below the current directory."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")


def _config_show(parsed: argparse.Namespace) -> int:
    loaded = target.resolve(parsed.target) if parsed.target is not None else None
    code, topology = (loaded.conf, loaded.topology) if loaded is not None else (None, None)
    resolved = options.resolved(parsed, code, topology, spark_settings.of_this_process())
    document = {"settings": display.as_data(resolved)}
    return output.show(parsed, document, display.as_text(resolved, parsed.origin))


def _reset(parsed: argparse.Namespace) -> int:
    loaded = target.resolve(parsed.target)
    settings = options.resolved(
        parsed, loaded.conf, loaded.topology, spark_settings.of_this_process()
    ).config

    def change(state: opening.Opened | None, where: str) -> str:
        return "\n".join(
            reset.reset(loaded.topology, state, where, parsed.leave_rows, parsed.execute)
        )

    return whereabouts.print_change_of_run(parsed, settings, change)


def _status(parsed: argparse.Namespace) -> int:
    if parsed.check is not None:
        return check.run(parsed.check, lambda: _statuses(parsed), whereabouts.data_dir(parsed))
    statuses, nothing = _statuses(parsed)
    for status in statuses:
        place = recording.place(whereabouts.data_dir(parsed), status["topology_id"])
        status["failing"] = show_state.failing(status, place)
    reach = whereabouts.reaching(whereabouts.where(parsed))
    text = "\n\n".join(show_state.status_text(status, *reach) for status in statuses) or nothing
    return output.show(parsed, {"topologies": statuses}, text)


def _statuses(parsed: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """The topologies' statuses, and the text if there are none."""

    def read(opened: opening.Opened | None) -> tuple[list[dict[str, Any]], str]:
        if opened is None:
            nothing = opening.nothing_stored(whereabouts.data_dir(parsed))
            if parsed.topology is not None:
                raise errors.UsageError(nothing)
            return [], nothing
        ids = (
            [parsed.topology]
            if parsed.topology is not None
            else administration.topologies(opened.store)
        )
        return [
            show_state.status_of(opened, id) for id in ids
        ], f"no topology has state in {opened.where}"

    # A check also reads the journal in the data directory.
    return whereabouts.look(parsed, read, with_data_dir=parsed.check is not None)


def _state_show(parsed: argparse.Namespace) -> int:
    def read(opened: opening.Opened | None) -> tuple[dict[str, Any], bool]:
        state = opening.require(opened, whereabouts.data_dir(parsed))
        return administration.show(state.store, parsed.topology), state.is_live

    shown, is_live = whereabouts.look(parsed, read)
    return output.show(parsed, shown, show_state.state_text(shown, is_live))


def _state_reset(parsed: argparse.Namespace) -> int:
    return whereabouts.print_change(
        parsed, lambda opened: maintain.reset_state(opened, parsed.topology, parsed.execute)
    )


def _state_accept(parsed: argparse.Namespace) -> int:
    if (parsed.spout is None) != (parsed.kind is None):
        raise errors.UsageError(
            "--spout and --kind go together\n  Give both, as the refused run has said."
        )
    spout = None if parsed.spout is None else components.Spout(id=parsed.spout, kind=parsed.kind)
    accepted = acceptance.Accepted(spout, tuple(parsed.store), parsed.sealed)
    return whereabouts.print_change(
        parsed,
        lambda opened: maintain.accept_state(opened, parsed.topology, accepted, parsed.execute),
    )


def _state_restored(parsed: argparse.Namespace) -> int:
    return whereabouts.print_change(
        parsed, lambda opened: maintain.restored_state(opened, parsed.topology, parsed.execute)
    )
