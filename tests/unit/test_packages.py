"""Code as zips: their content, their equality when built again, and a bare interpreter that runs a
driver's pickles."""

from __future__ import annotations

import errno
import importlib
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.servers import standalone
from txtopo import UsageError, __main__
from txtopo.spark import packages
from txtopo.topology import pickling


def loaded(
    place: Path, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str]
) -> dict[str, ModuleType]:
    """The user's modules in ``place``, by name; the modules loaded without them, by name."""
    for name, source in sources.items():
        file = place / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(str(place))
    return {
        "os": importlib.import_module("os"),
        "pytest": pytest,
        "__main__": sys.modules["__main__"],
    }


def test_code_to_ship_is_loaded_but_neither_installed_nor_pythons_nor_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = (
        "packagestest_alone",
        "packagestest_shop.words",
        "packagestest_shop.deep.later",
        "packagestest_unloaded",
    )
    modules = loaded(tmp_path / "src", monkeypatch, dict.fromkeys(sources, ""))
    (tmp_path / "src" / "packagestest_shop" / "data.txt").write_text("data")
    for name in ("packagestest_alone", "packagestest_shop.words"):
        importlib.import_module(name)
    ours = {
        name: module
        for name, module in sys.modules.items()
        if name.startswith(("packagestest_", "txtopo"))
    }
    package = packages.of_code(tmp_path / "build", {**modules, **ours})
    assert package is not None
    assert package.names == ("packagestest_alone", "packagestest_shop")
    assert [
        name for name in zipfile.ZipFile(package.path).namelist() if not name.endswith(".pyc")
    ] == [
        "packagestest_alone.py",
        "packagestest_shop/data.txt",
        "packagestest_shop/deep/later.py",
        "packagestest_shop/words.py",
    ]


def test_without_code_of_the_users_there_is_no_zip(tmp_path: Path) -> None:
    assert (
        packages.of_code(
            tmp_path / "build", {"os": importlib.import_module("os"), "pytest": pytest}
        )
        is None
    )
    assert not (tmp_path / "build").exists()


def test_native_code_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(tmp_path / "src", monkeypatch, {"packagesfast.__init__": ""})
    (tmp_path / "src" / "packagesfast" / "core.so").write_bytes(b"")
    package = packages.of_code(
        tmp_path / "build", {"packagesfast": importlib.import_module("packagesfast")}
    )
    assert package is not None
    assert package.native == ("packagesfast/core.so",)


@pytest.mark.thorough
def test_zips_of_equal_content_are_equal_byte_by_byte_in_any_process(tmp_path: Path) -> None:
    # Other loaded modules decide which names two pieces of code share in memory.
    program = "import sys; from pathlib import Path; from txtopo.spark import packages{}; print(packages.of_txtopo(Path(sys.argv[1])).path)"
    zips = []
    for seed, more in (("1", ""), ("2", ", jobs; import txtopo.engine.engine, txtopo.command.cli")):
        command = [sys.executable, "-c", program.format(more), str(tmp_path / seed)]
        done = subprocess.run(
            command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        zips.append(Path(done.stdout.strip()))
    assert zips[0].name == zips[1].name
    assert zips[0].read_bytes() == zips[1].read_bytes()


def test_a_directory_that_cannot_be_written_is_refused_with_the_option_to_give(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"cannot be written: .*\n  Give a writable directory: --build-dir DIR"
    ):
        packages.of_txtopo(tmp_path / "file")


def test_a_bare_interpreter_runs_code_that_a_driver_pickled_by_value(tmp_path: Path) -> None:
    python = standalone.bare_interpreter(tmp_path / "bare")
    package = packages.of_txtopo(tmp_path / "build")
    module = ModuleType("packagestest_by_value")
    sys.modules[module.__name__] = module
    try:
        exec(
            "class Greeting:\n    def __call__(self, name): return f'good day, {name}'",
            module.__dict__,
        )
        pickling.travel_by_value(module)
        (tmp_path / "pickle").write_bytes(pickling.dumps(module.Greeting()))
    finally:
        pickling.cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from txtopo.spark import task\n"
        "from txtopo.topology import pickling\n"
        "print(pickling.loads(open(sys.argv[2], 'rb').read())('Ann'), pickling.cloudpickle.__name__, 'pydantic' in sys.modules)\n"
        "sys.stdout.flush(); sys.stdout.buffer.write(pickling.dumps(lambda: 'back'))\n"
    )
    done = subprocess.run(
        [python, "-I", "-c", program, package.path, tmp_path / "pickle"],
        capture_output=True,
        check=False,
    )
    said, _, returned = done.stdout.partition(b"\n")
    assert said == b"good day, Ann pyspark.cloudpickle False", done.stderr.decode()
    assert pickle.loads(returned)() == "back"


def test_the_program_prefers_the_installed_package_to_its_copy_for_executors(
    tmp_path: Path,
) -> None:
    here = Path(str(__main__.__file__)).parent
    copy = "/somewhere/txtopo-0.1.0-0123456789ab.zip"
    entries = [str(here), copy, "/somewhere/code-0.zip", str(here.parent)]
    assert __main__.prefer_installed(entries, here) == ["/somewhere/code-0.zip", str(here.parent)]
    assert __main__.prefer_installed([str(here), copy], here) == [copy]


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "txtopo", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("txtopo ")


def test_a_zip_for_which_there_is_no_room_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        packages.of_txtopo(tmp_path)
    assert list(tmp_path.iterdir()) == []
