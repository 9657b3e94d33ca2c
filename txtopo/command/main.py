"""Runs a topology as a program, until its exit code: shows the progress, passes Ctrl-C on, prints
the error.

``python file.py`` and ``spark-submit file.py`` call :func:`main`, and ``txtopo run`` calls
:func:`run`. A run's options are in ``options``.

Runs on: driver, main thread.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from txtopo import config, errors
from txtopo.command import options, output, page_commands, signals, target, whereabouts
from txtopo.dataplane import out_of_resources
from txtopo.engine import logged
from txtopo.engine.status import RunStatus
from txtopo.runtime import cluster, progress
from txtopo.runtime.run import TopologyRun
from txtopo.spark import connect, log_lines, session, settings
from txtopo.state import credentials
from txtopo.state.zookeeper import ZooKeeperStateStore
from txtopo.topology import redaction
from txtopo.topology.graph import TopologyGraph

DEFAULT_MASTER = "local[*]"
_POLL_S = 0.2


def main(
    topology: Any,
    conf: config.Config | Mapping[str, Any] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Run ``topology`` as this program does, with the options of ``txtopo run`` taken from ``argv``
    (default: the command line).

    Returns when the run has ended well. Otherwise prints the error and ends the program with the
    error's exit code. Options win over ``conf``, which wins over Spark's configuration, the
    environment and a file (:func:`txtopo.config.resolve`). Inside ``spark-submit`` its SparkContext
    is used, else a local Spark is started. ``topology`` may be a builder, too.

    ::

        if __name__ == "__main__":
            txtopo.main(topology, Config(max_spout_pending=3))
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if target.loading() is not None:
        raise errors.UsageError(
            f'{target.loading()} runs its topology when it is imported\n  Guard the call: `if __name__ == "__main__":` before txtopo.main(…).'
        )
    parser = options.Parser(
        prog=Path(sys.argv[0]).name or None,
        description="Run this topology.",
        epilog=options.RUN_EPILOG,
    )
    options.add_run_options(parser)

    def run_it() -> int:
        parsed = parser.parse_args(arguments)
        graph = target.as_topology(topology, "the first argument of txtopo.main")
        return run(graph, settings_of(parsed, conf, graph), parsed)

    code = exit_code_of(run_it, verbose=is_verbose(arguments))
    if code:
        sys.exit(code)


def exit_code_of(action: Callable[[], int], verbose: bool) -> int:
    """Do ``action``. An error is printed, with Python's traceback if ``verbose``, and becomes an
    exit code."""
    progress.open_closed_streams()
    try:
        return _report_errors(action, verbose)
    except BrokenPipeError:
        if not output.has_no_reader():
            raise
        return output.READ_NO_LONGER
    finally:
        output.let_go()


def _report_errors(action: Callable[[], int], verbose: bool) -> int:
    try:
        try:
            return action()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        print("txtopo: interrupted", file=sys.stderr)
        return signals.exit_code_of(interruption)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and output.has_no_reader():
            raise
        if verbose:
            traceback.print_exception(error)
        told = out_of_resources.explained(error)
        if isinstance(told, errors.TxtopoError):
            print(f"txtopo: error: {_with_notes(told)}", file=sys.stderr)
        else:
            print(
                f"txtopo: error: {type(error).__name__}: {error}"
                + ("" if verbose else "\n  -v shows the place in the code."),
                file=sys.stderr,
            )
        return errors.exit_code_of(told)


def _with_notes(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def settings_of(
    parsed: argparse.Namespace,
    code: config.Config | Mapping[str, Any] | None,
    topology: TopologyGraph,
) -> config.Config:
    """The settings for a run of ``topology``, from ``parsed`` options, ``code`` and all other
    sources."""
    if parsed.master is not None and "PYSPARK_GATEWAY_PORT" in os.environ:
        raise errors.UsageError(
            f"--master {redaction.redacted(parsed.master)} comes too late: this program runs inside spark-submit\n"
            "  Give --master to spark-submit, before the file's name."
        )
    spark_conf = options.spark_conf_of(parsed)
    if spark_conf and "PYSPARK_GATEWAY_PORT" in os.environ:
        raise errors.UsageError(
            "--spark-conf comes too late: this program runs inside spark-submit\n"
            "  Give --conf to spark-submit, before the file's name."
        )
    connect.refuse(parsed.master or "", spark_conf)
    if parsed.master is not None:
        session.require_local(parsed.master)
    session.refuse_unsafe(spark_conf, "--spark-conf")
    spark = {**settings.of_this_process(), **settings.ours(spark_conf)}
    return options.resolved(parsed, code, topology, spark).config


def run(
    topology: TopologyGraph,
    conf: config.Config,
    parsed: argparse.Namespace,
    afterwards: Callable[[], int] = lambda: 0,
) -> int:
    """Run ``topology`` until the run ends or is stopped, and return the exit code. An error is
    raised, or told as a line of JSON.

    If the run was not stopped, ``afterwards`` is called at its end, and gives the exit code.
    """
    lines = log_lines.JsonLines(sys.stderr) if conf.log_format == "json" else None
    shown = progress.ProgressLine(sys.stderr if lines is None else cast(TextIO, lines))
    try:
        with (
            _logs_shown(shown, conf.log_level if lines else None),
            page_commands.of_run(parsed, conf, topology.id, shown.say),
            signals.StopSignals(
                early=lambda: shown.say(
                    "stopping: as soon as Spark has started (again to stop now)"
                )
            ) as stop,
        ):
            try:
                stop.is_harmless = True
                _require_zookeeper(conf)
                stop.is_harmless = False
                if "PYSPARK_GATEWAY_PORT" not in os.environ:
                    shown.say(cluster.STARTING)
                submission = cluster.Submission(
                    parsed.name or topology.id,
                    conf,
                    topology,
                    parsed.master or DEFAULT_MASTER,
                    options.spark_conf_of(parsed),
                    waiting=_Waiting(shown, stop),
                )
            except KeyboardInterrupt as interruption:
                shown.say("interrupted before the run began")
                return signals.exit_code_of(interruption)
            with submission as running:
                if stop.is_requested:
                    shown.say("interrupted before the run began")
                    _kill(running, shown)
                    return 128 + stop.signum
                stop.watch()
                ours = (
                    ""
                    if conf.zookeeper
                    else f" (our own, in {conf.data_dir or cluster.DEFAULT_DATA_DIR})"
                )
                code = _watch(
                    running,
                    shown,
                    stop,
                    lambda began: shown.started(
                        began, submission.zookeeper + ours, submission.master
                    ),
                )
        return code if code or stop.is_requested else afterwards()
    except Exception as error:
        place = "".join(whereabouts.reaching(conf))
        if isinstance(error, errors.StateMismatchError) and place:
            # The page's address stays the last line.
            error.__notes__.insert(0, f"  To reach this state, the commands need{place}")
        if lines is None:
            raise
        told = out_of_resources.explained(error)
        lines.log(logging.ERROR, _with_notes(told), told)
        return errors.exit_code_of(told)


@contextlib.contextmanager
def _logs_shown(shown: progress.ProgressLine, level: str | None = None) -> Iterator[None]:
    """A context in which ``shown`` prints warnings, or all lines from ``level`` on are printed in
    JSON, unless the program has said where its logs go. The command itself tells errors."""
    if logged.LOGGER.hasHandlers():
        yield
        return
    handler: logging.Handler = progress.Warnings(shown)
    handler.setFormatter(log_lines.TextFormatter("%(fields)s%(message)s"))
    before = logged.LOGGER.level
    if level is not None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(log_lines.formatter("json"))
        handler.addFilter(lambda each: each.levelno < logging.ERROR or each.name != "txtopo")
        logged.LOGGER.setLevel(level.upper())
    logged.LOGGER.addHandler(handler)
    try:
        yield
    finally:
        logged.LOGGER.removeHandler(handler)
        logged.LOGGER.setLevel(before)


class _Waiting:
    """A standby that waits for a data directory. Says so once, and gives up after a signal."""

    def __init__(self, shown: progress.ProgressLine, stop: signals.StopSignals) -> None:
        self._shown, self._stop, self._said = shown, stop, False

    def __call__(self, held: errors.HeldError) -> None:
        if not self._said:
            self._said = True
            self._shown.standing_by(str(held))
        if self._stop.is_requested:
            raise signals.InterruptedBySignalError(self._stop.signum)


def _require_zookeeper(conf: config.Config) -> None:
    """Notice an unreachable ZooKeeper now, before Spark is started for nothing."""
    if conf.zookeeper is not None:
        ZooKeeperStateStore(
            conf.zookeeper,
            conf.zookeeper_root,
            conf.zookeeper_connect_timeout_s,
            conf.zookeeper_session_timeout_s,
            credentials.of(conf),
        ).close()


def _watch(
    running: TopologyRun,
    shown: progress.ProgressLine,
    stop: signals.StopSignals,
    announce: Callable[[RunStatus], None],
) -> int:
    """Show the run's progress until its end, and stop or kill the run after signals. ``announce``
    is called once, when the run has its topology."""
    stopping = announced = False
    how = "failed"
    if running.began is None:
        shown.standing_by(running.status().last_error or "")
    try:
        while True:
            if running.began is not None and not announced:
                announced = True
                announce(running.began)
            try:
                running.join(_POLL_S)
                how = "stopped" if stopping else "done"
                return 0
            except TimeoutError:
                if not running.is_alive:
                    # The run ended just now, or with a TimeoutError. A second join tells.
                    running.join()
                    continue
            except Exception as error:
                is_of_spark = type(error).__module__.startswith("py4j")
                if not (is_of_spark or isinstance(error, ConnectionError)):
                    raise
                if stop.is_requested:
                    # spark-submit ends its SparkContext at the first Ctrl-C in a terminal, although
                    # the run would still use the context.
                    how = "aborted"
                    return 128 + stop.signum
                said = " ".join(str(error).splitlines()[:2])
                raise errors.TxtopoError(
                    f"Spark ended while the topology was running: {said}\n  Nothing is lost: the next run resumes."
                ) from error
            if stop.is_forced:
                how = "aborted"
                _kill(running, shown)
                return 128 + stop.signum
            if stop.is_requested and not stopping:
                stopping = True
                running.drain()
                shown.stopping()
            if announced:
                shown.update(running.status())
    finally:
        if running.began is not None:
            if not announced:
                announce(running.began)
            shown.ended(running.status(), how)


def _kill(running: TopologyRun, shown: progress.ProgressLine) -> None:
    try:
        running.kill()
    except TimeoutError as error:
        shown.say(str(error))


def is_verbose(arguments: Sequence[str]) -> bool:
    """Whether ``-v`` is among ``arguments``, which are not parsed yet, because parsing may fail
    too."""
    return "-v" in arguments or "--verbose" in arguments
