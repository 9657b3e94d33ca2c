"""The line of ``txtopo submit``: all that spark-submit must be told, nothing that must not be seen,
and refusals before anything is started."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pyspark
import pytest

from txtopo.command import cli, submit
from txtopo.spark import session

CLUSTER = "spark://127.0.0.1:7077"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two topologies: one for any cluster, one for a single machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "SPARK_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "words.py").write_text(
        "from tests.topologies import counted_words\n"
        "topology = counted_words.in_files('words', '*.txt', 'out')\n"
        "local = counted_words.in_sqlite('words', '*.txt', 'counts.db')\n"
    )
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The line, as a shell would take it apart."""
    code = cli.main(["submit", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    [line] = captured.out.splitlines()
    return shlex.split(line)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message about a line that must not be."""
    code = cli.main(["submit", *arguments, *([] if "--" in arguments else ["--print"])])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    return captured.err


def values(line: list[str], option: str) -> list[str]:
    return [line[index + 1] for index, argument in enumerate(line) if argument == option]


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_the_line_has_master_code_and_every_needed_setting(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = printed(
        capsys,
        "words.py",
        "--master",
        CLUSTER,
        "--print",
        "--until-exhausted",
        "--set",
        "user.greeting=good day",
        "--python",
        "/opt/py",
    )
    assert line[0] == str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    assert values(line, "--master") == [CLUSTER]
    assert values(line, "--name") == ["words"]
    confs = dict(conf.split("=", 1) for conf in values(line, "--conf"))
    assert {key: confs[key] for key in session.REQUIRED} == {
        key: value for key, (value, _) in session.REQUIRED.items()
    }
    assert confs["spark.pyspark.driver.python"] == sys.executable
    assert confs["spark.pyspark.python"] == "/opt/py"
    assert not any(
        key.startswith(("spark.driver.host", "spark.driver.bindAddress")) for key in confs
    )
    assert line[line.index(submit.PROGRAM) :] == [
        submit.PROGRAM,
        "run",
        "words.py",
        "--until-exhausted",
        "--set",
        "user.greeting=good day",
    ]
    zips = values(line, "--py-files")[0].split(",")
    assert [Path(file).name.partition("-")[0] for file in zips] == ["txtopo", "code"]
    assert all(
        Path(file).is_file() and Path(file).parent == place / ".txtopo" / "submit" for file in zips
    )


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_contrary_settings_of_sparks_own_file_are_replaced_and_told_and_its_java_options_are_kept(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine.conf").write_text(
        "spark.speculation true\nspark.driver.extraJavaOptions -Dhttp.proxyHost=proxy\n"
    )
    code = cli.main(
        [
            "submit",
            "words.py",
            "--master",
            CLUSTER,
            "--print",
            "--",
            "--properties-file",
            "mine.conf",
        ]
    )
    captured = capsys.readouterr()
    assert code == 0
    assert (
        "Spark's own configuration has spark.speculation=true, but false is used here"
        in captured.err
    )
    assert "spark.speculation=false" in captured.out
    assert "spark.driver.extraJavaOptions" not in captured.out


@pytest.mark.thorough
def test_the_same_arguments_give_the_same_line_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["words.py", "--master", "yarn", "--print", "--build-dir", "build"]
    first = printed(capsys, *arguments)
    times = {path: path.stat().st_mtime_ns for path in (place / "build").iterdir()}
    assert printed(capsys, *arguments) == first
    assert {path: path.stat().st_mtime_ns for path in (place / "build").iterdir()} == times


@pytest.mark.thorough
def test_options_after_the_dashes_are_spark_submits_and_win(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = "--executor-memory 4g --py-files mine.zip --conf spark.pyspark.driver.python=/other --py-files=more.py --name n"
    line = printed(capsys, "words.py", "--master", CLUSTER, "--print", "--", *theirs.split())
    before = line[: line.index(submit.PROGRAM)]
    assert values(before, "--executor-memory") == ["4g"]
    assert [Path(file).name for file in values(before, "--py-files")[0].split(",")[2:]] == [
        "mine.zip",
        "more.py",
    ]
    assert len(values(before, "--py-files")) == 1
    assert "--py-files=more.py" not in before
    assert [conf for conf in values(before, "--conf") if "driver.python" in conf] == [
        "spark.pyspark.driver.python=/other"
    ]
    assert values(before, "--name") == ["n"]


@pytest.mark.thorough
def test_only_a_local_master_makes_workers_use_this_interpreter(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"spark.pyspark.python={sys.executable}" in printed(
        capsys, "words.py:local", "--master", "local[2]", "--print"
    )
    assert not any(
        part.startswith("spark.pyspark.python=")
        for part in printed(capsys, "words.py", "--master", CLUSTER, "--print")
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "is_ours"),
    [
        ((), True),
        (("--python", "/opt/py"), False),
        (("--", "--conf", "spark.pyspark.python=/opt/py"), False),
        (("--", "--conf=spark.python.daemon.module=theirs"), False),
    ],
)
def test_workers_of_a_local_master_end_without_a_traceback_if_their_interpreter_is_this_one(
    place: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], is_ours: bool
) -> None:
    """They are then forked from our own daemon, as those of ``txtopo run`` are; another interpreter
    need not have txtopo before Spark ships it."""
    line = printed(capsys, "words.py:local", "--master", "local[2]", "--print", *options)
    assert ("spark.python.daemon.module=txtopo.spark.daemon" in line) == is_ours
    cluster = printed(capsys, "words.py", "--master", CLUSTER, "--print", *options)
    assert "spark.python.daemon.module=txtopo.spark.daemon" not in cluster


@pytest.mark.thorough
def test_an_interpreter_for_workers_in_the_environment_is_not_asked_for_our_daemon(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/py")
    assert not any(
        "daemon.module" in part
        for part in printed(capsys, "words.py:local", "--master", "local[2]", "--print")
    )


@pytest.mark.thorough
def test_spark_s_own_logging_is_left_alone_where_it_is_configured(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sets_logging(*more: str) -> bool:
        return any(
            "log4j2.configurationFile" in part
            for part in printed(capsys, "words.py", "--master", CLUSTER, "--print", *more)
        )

    assert sets_logging()
    assert not sets_logging("--", "--driver-java-options", "-Da=b")
    (place / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(place))
    assert not sets_logging()


@pytest.mark.thorough
def test_a_part_that_works_on_one_machine_only_is_refused_on_a_cluster_with_the_cure(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "words.py:local", "--master", CLUSTER)
    assert (
        f"component 'count': SqliteStore writes a file on this machine, but the master is {CLUSTER}"
        in said
    )
    assert "txtopo.stores.SqlStore" in said
    said = refused(capsys, "starter.transactional_global_count", "--master", CLUSTER)
    assert "component 'spout': its rows are kept in temporary files on the driver's machine" in said
    assert "FileTransactionalSpout" in said
    assert not (place / ".txtopo" / "submit").exists()


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_settings_that_could_mix_two_emissions_are_refused_with_the_line_to_type(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsafe = ["--conf", "spark.speculation=true", "-c", "spark.task.maxFailures=4"]
    said = refused(capsys, "words.py", "--master", CLUSTER, "--print", "--", *unsafe)
    assert (
        "spark.speculation=true, but a second copy of a task would emit the batch twice; spark.task.maxFailures=4, but "
        in said
    )
    assert "--conf spark.speculation=false --conf spark.task.maxFailures=1" in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "secret", "cure"),
    [
        (
            ["--set", "user.db_password=hunter2"],
            "hunter2",
            "Put the secret into the environment, as TXTOPO_…",
        ),
        (
            ["--", "--conf", "spark.hadoop.fs.s3a.secret.key=hunter2"],
            "hunter2",
            "--properties-file FILE",
        ),
        (["--", "--conf=spark.authenticate.secret=hunter2"], "hunter2", "--properties-file FILE"),
        (["--set", "user.db=postgresql://me:hunter2@host/db"], "hunter2", "Leave the password out"),
    ],
)
def test_a_secret_is_neither_passed_on_nor_shown(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], secret: str, cure: str
) -> None:
    said = refused(capsys, "words.py", "--master", CLUSTER, "--print", *arguments)
    assert cure in said
    assert secret not in said


@pytest.mark.thorough
def test_where_a_secret_is_kept_is_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    confs = [
        "spark.kubernetes.authenticate.submission.oauthTokenFile=/run/token",
        "spark.kubernetes.driver.secrets.tls=/etc/tls",
    ]
    line = printed(
        capsys,
        "words.py",
        "--master",
        CLUSTER,
        "--print",
        "--",
        "--conf",
        confs[0],
        "--conf",
        confs[1],
    )
    assert set(confs) <= set(values(line, "--conf"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "fact", "cure"),
    [
        (["words.py", "--print"], "there is no --master", "--master spark://HOST:7077"),
        (
            ["words.py", "--master", CLUSTER, "--", "--master", "yarn"],
            "--master comes after --",
            "before the --",
        ),
        (
            ["words.py", "--master", CLUSTER, "--", "--class", "Main"],
            "--class comes after --",
            "Leave --class out",
        ),
        (["word.py", "--master", CLUSTER], "there is no file word.py", "words.py"),
        (
            ["words.py", "--master", CLUSTER, "--set", "max_spout_pendign=3"],
            "unknown setting 'max_spout_pendign'",
            "max_spout_pending",
        ),
        (
            ["words.py", "--master", "yarn", "--", "--deploy-mode", "cluster"],
            "our own ZooKeeper",
            "--zookeeper HOST:PORT",
        ),
        (
            ["words.py", "--master", "yarn", "--zookeeper", "z:1", "--", "--deploy-mode=cluster"],
            "has no file words.py",
            "words:attribute",
        ),
    ],
)
def test_a_line_that_could_not_work_is_refused_with_the_cure(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fact: str, cure: str
) -> None:
    said = refused(capsys, *arguments)
    assert fact in said
    assert cure in said


@pytest.mark.thorough
def test_a_driver_on_the_cluster_takes_the_clusters_interpreter(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = printed(
        capsys,
        "words:topology",
        "--master",
        "yarn",
        "--zookeeper",
        "z:1",
        "--print",
        "--",
        "--deploy-mode",
        "cluster",
    )
    assert not any("spark.pyspark" in part or "log4j2" in part for part in line)


@pytest.mark.thorough
def test_run_with_a_cluster_points_to_submit(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "words.py", "--master", CLUSTER]) == 2
    assert f"txtopo submit TARGET --master {CLUSTER}" in capsys.readouterr().err


@pytest.mark.rule(33)
def test_a_directory_that_spark_would_take_for_a_pattern_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run[12]").mkdir()
    monkeypatch.chdir(place / "run[12]")
    said = refused(capsys, "../words.py", "--master", CLUSTER)
    assert (
        f"spark-submit would take the directory {place}/run[12]/.txtopo/submit for a pattern or a list"
        in said
    )


def test_a_setting_of_sparks_belongs_after_the_dashes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(
        capsys, "words.py", "--master", CLUSTER, "--spark-conf", "spark.x.password=hunter2"
    )
    assert "Give --conf KEY=VALUE after --." in told
    assert "hunter2" not in told
