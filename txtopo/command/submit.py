"""Makes the line that gives a topology to spark-submit, for ``txtopo submit``.

spark-submit runs txtopo itself, with the arguments of ``txtopo run``. So TARGET and the options
mean the same as there, and only zips of code are generated. TARGET is loaded beforehand, so that a
mistake in TARGET is found before a cluster is asked.

Runs on: where the command is typed. ``submit_process`` runs the line, so that ``txtopo submit
--print`` can show a line without running it.

Invariants: any shell can run the line in the same directory. The line holds no secret, because
Spark shows its arguments in the user interface and the event log, and the operating system shows
them in the process list.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import txtopo
from txtopo import errors
from txtopo.command import options, target
from txtopo.config import sources
from txtopo.runtime import cluster, run
from txtopo.spark import connect, packages, session
from txtopo.spark import settings as spark_settings
from txtopo.topology import redaction

EPILOG = """\
The arguments after -- are given to spark-submit: --executor-memory 4g, --archives env.tar.gz#environment, --conf key=value, …
The exit code comes from the run, unless the driver runs on the cluster (--deploy-mode cluster).
"""

PROGRAM = str(Path(txtopo.__file__).parent / "__main__.py")
"""The program that spark-submit runs."""
_NAMES_OF_SECRETS = ("spark.kubernetes.driver.secret", "spark.kubernetes.executor.secret")
"""A setting that begins so says where Kubernetes has a secret."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line as an argument list, and notes for the person at the terminal."""

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line for a shell."""
        return shlex.join(self.arguments)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``txtopo run`` does not have."""
    submit = parser.add_argument_group("how to submit")
    submit.add_argument(
        "--print",
        action="store_true",
        dest="only_print",
        help="print the line that would run spark-submit, and run nothing",
    )
    submit.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter on the hosts of the executors (default: PYSPARK_PYTHON, or python3 there)",
    )
    submit.add_argument(
        "--build-dir",
        type=Path,
        metavar="DIR",
        help="where the zips of code are made (default: submit in the data directory)",
    )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before the first ``--``, and the arguments after the first ``--``."""
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


def line_of(parsed: argparse.Namespace, arguments: Sequence[str], theirs: Sequence[str]) -> Line:
    """The line for the command ``txtopo submit`` with ``arguments``, which were ``parsed``, and
    ``theirs`` after ``--``."""
    if parsed.master is None:
        raise errors.UsageError(
            "there is no --master, so txtopo does not know where to run\n  Give --master spark://HOST:7077, yarn, k8s://… or local[2]."
        )
    if parsed.spark_conf:
        raise errors.UsageError("--spark-conf is of txtopo run\n  Give --conf KEY=VALUE after --.")
    _refuse_secrets([*arguments, *theirs])
    spark = dict(_pairs(theirs))
    _refuse_options(spark)
    conf = _confs(theirs)
    # Settings of spark-submit itself, from spark-defaults.conf or the file named after --.
    found_by_spark = spark_settings.all_before_start(
        {**os.environ, "PYSPARK_SUBMIT_ARGS": shlex.join(theirs)}
    )
    connect.refuse(parsed.master, found_by_spark)
    session.refuse_unsafe(conf, "the line after --")
    is_local = session.local_cores(parsed.master) is not None
    on_cluster = spark.get("--deploy-mode", conf.get("spark.submit.deployMode")) == "cluster"
    loaded = target.resolve(parsed.target)
    resolved = options.resolved(
        parsed, loaded.conf, loaded.topology, spark_settings.before_start(os.environ)
    ).config
    run.refuse_local_only(loaded.topology, parsed.master)
    if on_cluster:
        _refuse_on_cluster(parsed, resolved.zookeeper is None)

    build = parsed.build_dir or Path(resolved.data_dir or cluster.DEFAULT_DATA_DIR) / "submit"
    if set(str(build.absolute())) & set("[]{}*?,#\\"):
        cure = (
            "Give a directory for the zips, in a path without [ ] { } * ? , # \\: --build-dir DIR"
        )
        raise errors.UsageError(
            f"spark-submit would take the directory {build.absolute()} for a pattern or a list\n  {cure}"
        )
    code = packages.of_code(build)
    zips = [
        str(package.path) for package in (packages.of_txtopo(build), code) if package is not None
    ]
    ours = {key: value for key, (value, _) in session.REQUIRED.items()} | _of_driver(
        is_local, on_cluster, found_by_spark, spark, parsed.python
    )
    line = [
        spark_submit(),
        "--master",
        parsed.master,
        *([] if "--name" in spark else ["--name", parsed.name or loaded.topology.id]),
    ]
    for key in sorted(ours.keys() - conf.keys()):
        line += ["--conf", f"{key}={ours[key]}"]
    files, rest = _without_py_files(theirs)
    line += [
        "--py-files",
        ",".join([*zips, *files]),
        *rest,
        PROGRAM,
        "run",
        *_arguments_of_run(arguments),
    ]
    return Line(tuple(line), (*_notes(code), *session.replaced(found_by_spark)))


def spark_submit() -> str:
    """The path of the script: in ``SPARK_HOME`` if set, else in the pyspark that is installed
    here."""
    script = spark_settings.spark_home(os.environ) / "bin" / "spark-submit"
    if not script.is_file():
        raise errors.SetupError(
            f"there is no {script}\n  Correct SPARK_HOME, or unset it: pyspark brings a spark-submit."
        )
    return str(script)


def _arguments_of_run(arguments: Sequence[str]) -> list[str]:
    """``arguments`` as they were typed, without spark-submit's options."""
    parser = options.Parser(add_help=False)
    add_options(parser)
    parser.add_argument("--master")
    return parser.parse_known_args(list(arguments))[1]


def _of_driver(
    is_local: bool,
    on_cluster: bool,
    settings: dict[str, str],
    spark: dict[str, str],
    python: str | None,
) -> dict[str, str]:
    """Settings that come too late once there is a driver."""
    defaults: dict[str, str] = {}
    if python is not None or (is_local and "PYSPARK_PYTHON" not in os.environ):
        defaults["spark.pyspark.python"] = python or sys.executable
        if (
            python is None
            and "spark.pyspark.python" not in settings
            and "spark.python.daemon.module" not in settings
        ):
            # Workers with this interpreter have txtopo, and end without a traceback when Spark
            # closes their sockets.
            defaults["spark.python.daemon.module"] = session.DAEMON
    if on_cluster:
        return defaults
    defaults["spark.pyspark.driver.python"] = sys.executable
    places = [os.environ.get("SPARK_CONF_DIR"), str(Path(spark_submit()).parents[1] / "conf")]
    has_logging = any(Path(place, "log4j2.properties").is_file() for place in places if place)
    if (
        not has_logging
        and "--driver-java-options" not in spark
        and "spark.driver.extraJavaOptions" not in settings
    ):
        defaults["spark.driver.extraJavaOptions"] = (
            f"-Dlog4j2.configurationFile={session.LOGGING.as_uri()}"
        )
    return defaults


# -- what is after -- ----------------------------------------------------------------------------


def _pairs(theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """All ``--name value`` and ``--name=value``. A flag gets the next argument as its value, which
    does no harm."""
    for index, argument in enumerate(theirs):
        name, separator, value = argument.partition("=")
        if argument.startswith("-"):
            yield (
                (name, value)
                if separator
                else (argument, theirs[index + 1] if index + 1 < len(theirs) else "")
            )


def _confs(theirs: Sequence[str]) -> dict[str, str]:
    settings = [value.partition("=") for name, value in _pairs(theirs) if name in ("--conf", "-c")]
    return {key: value for key, _, value in settings}


def _without_py_files(theirs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The user's files, and all other arguments. spark-submit takes only the last ``--py-files``,
    so there must be one."""
    files: list[str] = []
    rest: list[str] = []
    arguments = iter(theirs)
    for argument in arguments:
        if argument == "--py-files":
            files += next(arguments, "").split(",")
        elif argument.startswith("--py-files="):
            files += argument.partition("=")[2].split(",")
        else:
            rest.append(argument)
    return [file for file in files if file], rest


# -- what is refused -----------------------------------------------------------------------------


def _refuse_options(spark: dict[str, str]) -> None:
    for name in ("--master", "--class"):
        if name in spark:
            cure = (
                "Give --master before the --."
                if name == "--master"
                else "Leave --class out: a topology is a Python program."
            )
            raise errors.UsageError(f"{name} comes after --\n  {cure}")


def _refuse_on_cluster(parsed: argparse.Namespace, is_embedded: bool) -> None:
    if is_embedded:
        raise errors.UsageError(
            "with --deploy-mode cluster the driver, and with it our own ZooKeeper, would be on another host each time\n"
            "  Give your own ensemble: --zookeeper HOST:PORT[/CHROOT]."
        )
    if target.is_file(parsed.target):
        name = Path(parsed.target.partition(":")[0]).stem
        raise errors.UsageError(
            f"with --deploy-mode cluster the driver has no file {parsed.target}\n"
            f"  Name the file as a module, because a module's code is shipped: {name}:attribute, typed in the file's directory."
        )


def _refuse_secrets(arguments: Sequence[str]) -> None:
    """Refuse secrets, which every reader of the line would see."""
    for argument in arguments:
        key, _, value = argument.rpartition("--conf=")[2].rpartition("--set=")[2].partition("=")
        if (
            "=" in argument
            and not key.startswith("-")
            and redaction.is_secret(key)
            and not key.startswith(_NAMES_OF_SECRETS)
        ):
            cure = (
                "Put the secret into a file, and give the file after --: --properties-file FILE."
                if key.startswith("spark.")
                else f"Put the secret into the environment, as {sources.ENVIRONMENT_PREFIX}…, or into a settings file."
            )
            raise errors.UsageError(
                f"{key} is a secret, and every user of Spark sees the arguments of spark-submit\n  {cure}"
            )
        if redaction.redacted(value or key) != (value or key):
            raise errors.UsageError(
                f"{redaction.redacted(argument)}: there is a password in this address, and every user of Spark sees the arguments of spark-submit\n"
                "  Leave the password out, and let the program read the password from the environment or from a file."
            )


def _notes(code: packages.Package | None) -> tuple[str, ...]:
    if code is None:
        return ()
    native = (
        f", but {', '.join(code.native)} cannot be imported from a zip: use --archives"
        if code.native
        else ""
    )
    return (f"ships {', '.join(code.names)}{native}",)
