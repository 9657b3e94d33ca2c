"""Workers import what the driver imports; a module that a worker cannot import is named, with the
cure."""

from __future__ import annotations

import pickle
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from txtopo import errors
from txtopo.dataplane import worker
from txtopo.dataplane.outcome import Failure, Tally
from txtopo.engine.jobs import JobResult
from txtopo.spark import imports
from txtopo.spark.jobs import SparkJobs
from txtopo.topology import pickling
from txtopo.topology.transaction import TransactionAttempt


class Context:
    """Spark's."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}


def test_a_worker_searches_the_drivers_directories_first_and_in_the_drivers_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "run:1", "/app", "/usr/lib/python3"])
    places = imports.shared_with(Context())
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", ["/elsewhere", "/usr/lib/python3", "/spark/pyspark.zip"])
    assert imports.data_of(types.SimpleNamespace(value=(places, b"a run"))) == b"a run"
    assert sys.path == [
        str(tmp_path),
        str(tmp_path / "run:1"),
        "/app",
        "/usr/lib/python3",
        "/elsewhere",
        "/spark/pyspark.zip",
    ]


def test_a_worker_of_another_python_takes_no_packages_of_the_drivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program's own directories may be anywhere, even within Python's prefix."""
    within = str(Path(sys.prefix) / "src")
    packages = sysconfig.get_paths()
    monkeypatch.setattr(
        sys,
        "path",
        [
            within,
            packages["stdlib"],
            f"{packages['stdlib']}/lib-dynload",
            packages["purelib"],
            "/app",
        ],
    )
    entries, own, _ = imports.shared_with(Context())
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3.11"])
    imports.data_of(types.SimpleNamespace(value=((entries, own, "/opt/env"), b"")))
    assert sys.path == [within, "/app", "/usr/lib/python3.11"]


def test_a_worker_finds_txtopo_where_only_the_drivers_path_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = Context()
    monkeypatch.setattr(errors, "__file__", "/opt/site-packages/txtopo/errors.py")
    imports.shared_with(context)
    assert context.environment == {}
    monkeypatch.setattr(errors, "__file__", "/vendored/txtopo/errors.py")
    imports.shared_with(context)
    assert context.environment == {"PYTHONPATH": "/vendored"}


def text_of_spark(said: str) -> str:
    return f'[PYTHON_EXCEPTION] An exception was thrown:\n  File "pickling.py", line 126, in loads\n{said}\n SQLSTATE: 38000'


@pytest.mark.parametrize(("is_local", "cure"), [(True, "sys.path"), (False, "--py-files")])
def test_a_module_that_only_workers_miss_is_named_with_the_cure(is_local: bool, cure: str) -> None:
    error = imports.error_of(text_of_spark("ModuleNotFoundError: No module named 'json'"), is_local)
    assert str(error).startswith(
        "the workers cannot import the module 'json', which this program can\n  "
    )
    assert cure in str(error)
    assert (
        imports.error_of("ModuleNotFoundError: No module named 'no_such_module'", is_local) is None
    ), "nor does the driver have it"
    assert (
        imports.error_of("a row says ModuleNotFoundError: No module named 'json'", is_local) is None
    )


def test_code_that_cannot_be_loaded_ends_the_run_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would fail in every attempt."""
    module = ModuleType("another_version")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("class Bolt: pass", vars(module))
    data = pickling.dumps(vars(module)["Bolt"])
    del module.__dict__["Bolt"]
    with pytest.raises(AttributeError) as caught:
        worker.worker_run("a run of another version", lambda: data)
    error = imports.error_of(
        text_of_spark("".join(traceback.format_exception(caught.value))), is_local=False
    )
    assert str(error).startswith(
        "a worker cannot load the topology's code: AttributeError: Can't get attribute 'Bolt' on <module 'another_version'"
    )


def test_memory_that_runs_out_while_code_is_loaded_is_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pickle, "loads", lambda data: bytearray(1 << 62))
    with pytest.raises(MemoryError) as caught:
        worker.worker_run("a run without memory", lambda: b"")
    assert (
        imports.error_of(
            text_of_spark("".join(traceback.format_exception(caught.value))), is_local=False
        )
        is None
    )


def test_a_hook_that_misses_a_module_of_the_driver_ends_the_run_with_the_cure_and_its_place() -> (
    None
):
    said = "ModuleNotFoundError: No module named 'json'"
    failure = Failure(
        "error", "split", 2, TransactionAttempt(3, 0), "processing", "execute", said, "Traceback"
    )
    on_spark: Any = object.__new__(SparkJobs)
    on_spark._result, on_spark._run = (
        lambda *job: JobResult(Tally(), failure),
        type("Run", (), {"local_master": False}),
    )
    with pytest.raises(
        errors.SetupError,
        match=r"(?s)cannot import the module 'json'.*--py-files.*component 'split', task 2, attempt 3:0",
    ):
        on_spark.run(None, None)


def test_classes_of_a_spawned_program_travel_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing gives the program the name ``__mp_main__`` in spawned processes."""
    program = ModuleType("__mp_main__")
    monkeypatch.setitem(sys.modules, "__mp_main__", program)
    exec(
        "class Bolt:\n    def name(self):\n        return helper()\ndef helper():\n    return 'helped'",
        vars(program),
    )
    data, classes = pickling.dumps_with_classes(vars(program)["Bolt"]())
    pickling.cloudpickle.unregister_pickle_by_value(program)
    monkeypatch.delitem(sys.modules, "__mp_main__")
    assert pickling.loads(data).name() == "helped"
    assert [cls.__name__ for cls in classes] == ["Bolt"]
