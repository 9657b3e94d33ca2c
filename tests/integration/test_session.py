"""The Spark context: made right, refused when wrong, shared when equal. Contexts that are not ours
live in processes of their own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.servers.clusters import fast
from txtopo import LocalCluster, SetupError, TransactionalTopologyBuilder, UserCodeError
from txtopo.spark import session
from txtopo.testing import MemoryTransactionalSpout


def run_python(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process of its own."""
    here = str(Path(__file__).parents[2])
    variables = {**os.environ, "PYTHONPATH": here, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_context_of_ours_has_every_setting_and_is_shared_by_consecutive_clusters(
    cluster: LocalCluster,
) -> None:
    conf = dict(cluster.context.getConf().getAll())
    for key, (value, _) in session.REQUIRED.items():
        assert conf[key] == value, key
    for key, value in session.WANTED.items():
        assert conf[key] == value, key
    with LocalCluster(master="local[2]") as another:
        assert another.context is cluster.context


HELPERS = """
from txtopo import BaseTransactionalBolt

class Answer(BaseTransactionalBolt):
    def execute(self, tup):
        import second_helper_of_a_program
        raise RuntimeError(f"found {second_helper_of_a_program.answer}")
"""


def test_workers_on_this_machine_import_what_the_driver_does(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a directory that sys.path got after Spark had started."""
    (tmp_path / "helper_of_a_program.py").write_text(HELPERS)
    (tmp_path / "second_helper_of_a_program.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(tmp_path)
    builder = TransactionalTopologyBuilder(
        "imports", "spout", MemoryTransactionalSpout({0: [(1,)]}, ["n"], 1)
    )
    builder.set_bolt(
        "answer", importlib.import_module("helper_of_a_program").Answer()
    ).shuffle_grouping("spout")
    with pytest.raises(UserCodeError, match="RuntimeError: found 42"):
        cluster.submit_topology("imports", fast(), builder.build_topology()).join(PATIENCE_S)


@pytest.mark.rule(33)
def test_settings_that_could_mix_two_emissions_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError,
        match=r"spark\.speculation=true, but a second copy of a task would emit the batch twice",
    ):
        session.our_settings("local[2]", {"spark.speculation": "true"})
    with pytest.raises(SetupError, match=r"spark\.task\.maxFailures=4"):
        session.our_settings("local[2]", {"spark.task.maxFailures": "4"})


@pytest.mark.thorough
@pytest.mark.rule(33)
def test_a_given_context_without_the_needed_settings_is_refused_with_their_names(
    tmp_path: Path,
) -> None:
    code = """
import pyspark, txtopo
context = pyspark.SparkContext("local[1]", "mine")
try:
    txtopo.LocalCluster(master="local[1]", data_dir="zk")
except txtopo.SetupError as error:
    print("REFUSED", error)
finally:
    context.stop()
"""
    done = run_python(code, tmp_path)
    assert "REFUSED the Spark session given has spark.stage.max" in done.stdout, done.stderr
    assert "set spark.stage.max" in done.stdout


@pytest.mark.in_gate("SPARK_REMOTE")
@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_API_MODE"])
def test_spark_connect_is_refused_before_anything_is_started(tmp_path: Path, variable: str) -> None:
    code = """
import txtopo
try:
    txtopo.LocalCluster(data_dir="zk")
except txtopo.SetupError as error:
    print("REFUSED", error, error.exit_code)
"""
    done = run_python(
        code, tmp_path, **{variable: "sc://127.0.0.1" if variable == "SPARK_REMOTE" else "connect"}
    )
    assert "is Spark Connect, which has no SparkContext" in done.stdout, done.stderr
    assert not (tmp_path / "zk").exists()


def test_cores_of_masters() -> None:
    assert session.local_cores("local") == 1
    assert session.local_cores("local[3]") == 3
    assert session.local_cores("local[2,4]") == 2
    assert session.local_cores("local[*]") == os.cpu_count()
    assert session.local_cores("local-cluster[2,3,512]") == 6
    assert session.local_cores("spark://127.0.0.1:7077") is None


def test_the_message_of_a_jvm_that_cannot_start_reaches_the_user(tmp_path: Path) -> None:
    code = """
import txtopo
from txtopo.spark import session
try:
    session.spark_context("local[1]", {"spark.driver.extraJavaOptions": "-javaagent:/no/such.jar"})
except txtopo.SetupError as error:
    print("REFUSED", error)
"""
    done = run_python(code, tmp_path)
    assert "REFUSED Spark did not start:" in done.stdout, done.stderr
    assert "/no/such.jar" in done.stderr


@pytest.mark.thorough
def test_a_program_that_starts_spark_prints_nothing_of_java(tmp_path: Path) -> None:
    code = """
from txtopo.spark import session
context = session.spark_context("local[1]")
print(context.parallelize([1, 2], 1).map(lambda n: (n, __import__("sys").stderr.write(f"number {n}\\n"))[0]).sum())
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"
    assert done.stderr == "number 1\nnumber 2\n"


@pytest.mark.thorough
def test_a_program_goes_on_although_its_fork_has_asked_for_a_cluster(tmp_path: Path) -> None:
    code = """
import os, sys
from txtopo import Config, LocalCluster, SetupError
from txtopo.testing import MemoryTransactionalSpout
from txtopo import BaseTransactionalBolt, TransactionalTopologyBuilder
class Swallow(BaseTransactionalBolt):
    def execute(self, tup): ...
def topology(id):
    builder = TransactionalTopologyBuilder(id, "spout", MemoryTransactionalSpout({0: [(1,), (2,)]}, ["n"], 1))
    builder.set_bolt("swallow", Swallow()).shuffle_grouping("spout")
    return builder.build_topology()
with LocalCluster() as cluster:
    cluster.submit_topology("first", Config(), topology("first")).wait_until_idle()
    child = os.fork()
    if not child:
        try:
            LocalCluster()
        except SetupError as error:
            sys.exit(f"REFUSED {error}")
    os.waitpid(child, 0)
    run = cluster.submit_topology("second", Config(), topology("second"))
    run.wait_until_idle()
    print(run.stop().committed)
"""
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert "REFUSED this process is a fork of" in done.stderr


@pytest.mark.thorough
def test_a_run_needs_no_standard_streams(tmp_path: Path) -> None:
    """Descriptors that are closed would be those of locks and sockets."""
    code = """
import os, pathlib
for descriptor in (0, 1, 2):
    os.close(descriptor)
os.execv(os.environ["PYTHON"], [os.environ["PYTHON"], "-m", "txtopo", "run", "words.py", "--until-exhausted", "--master", "local[2]"])
"""
    words = """
from tests.topologies.recording import NotingCommitter
from txtopo import TransactionalTopologyBuilder
from txtopo.testing import MemoryTransactionalSpout
builder = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout({0: [(1,), (2,)]}, ["n"], 1))
builder.set_bolt("count", NotingCommitter()).global_grouping("spout")
topology = builder.build_topology()
"""
    (tmp_path / "words.py").write_text(words)
    done = run_python(code, tmp_path, PYTHON=sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
