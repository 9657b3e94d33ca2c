"""The demo out of a wheel: built from this tree, installed into an empty environment, run in an
empty directory."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from tests.starter.commands import ROOT, Command
from txtopo import demo


def made(*command: str | Path) -> None:
    """Run ``command`` to its good end."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_runs_out_of_a_wheel_in_an_empty_directory(tmp_path: Path) -> None:
    made(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("txtopo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("txtopo/demo/stdlib_words.py") == demo.FILE.read_bytes()
        assert [name for name in archive.namelist() if name.startswith(("starter/", "tests/"))] == []

    environment = tmp_path / "environment"
    made(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    made(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (installed,) = environment.glob("lib/python*/site-packages")
    # What txtopo depends on, as it is installed here; a path of a .pth file has no .pth files of
    # its own, so this tree is not among them.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    place = tmp_path / "empty"
    place.mkdir()
    with Command([environment / "bin" / "txtopo", "demo", "--master", "local[2]"], place, PYSPARK_PYTHON=str(python), PYTHONPATH="") as command:
        command.wait_until_it_says("stdlib-words begins at txid 1 ")
        command.wait_until_it_says("stdlib-words done: ")
        assert command.wait() == 0, command.said
    assert " % of the input, " in command.said
    assert "\nequal: a plain count gives the same number for each of the " in command.said
    assert str(ROOT) not in command.said
    assert (place / demo.DATA_DIR / "words.db").is_file()
