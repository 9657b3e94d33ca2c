"""The first ten minutes out of a wheel: built from this tree, installed into an empty environment,
used in empty directories."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.starter.commands import ROOT, Command, done
from txtopo import demo
from txtopo.command import new


def run_to_its_good_end(*command: str | Path) -> None:
    """Run ``command``, which must succeed."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    run_to_its_good_end(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (file,) = folder.glob("txtopo-*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    run_to_its_good_end(sys.executable, "-m", "venv", "--without-pip", folder)
    run_to_its_good_end(
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    (installed,) = folder.glob("lib/python*/site-packages")
    # The dependencies of txtopo, as they are installed here; a path of a .pth file has no .pth
    # files of its own, so this tree is not among them.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def variables(environment: Path) -> dict[str, str]:
    return {"PYSPARK_PYTHON": str(environment / "python"), "PYTHONPATH": ""}


def test_a_wheel_has_the_demo_and_the_starters_of_txtopo_new_and_nothing_beside_the_package(
    wheel: Path,
) -> None:
    starters = {name for kind in new.KINDS.values() for name in kind.files}
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("txtopo/demo/stdlib_words.py") == demo.FILE.read_bytes()
        assert {name for name in archive.namelist() if name.startswith("txtopo/starters/")} == {
            f"txtopo/starters/{name}" for name in starters
        }
        for name in starters:
            assert archive.read(f"txtopo/starters/{name}") == (ROOT / "starter" / name).read_bytes()
        assert {name.partition("/")[0].partition("-")[0] for name in archive.namelist()} == {
            "txtopo"
        }


@pytest.mark.thorough
def test_the_demo_runs_out_of_a_wheel_in_an_empty_directory(
    environment: Path, tmp_path: Path
) -> None:
    with Command(
        [environment / "txtopo", "demo", "--master", "local[2]"], tmp_path, **variables(environment)
    ) as command:
        command.wait_until_it_says("stdlib-words begins at txid 1 ")
        command.wait_until_it_says("stdlib-words done: ")
        assert command.wait() == 0, command.said
    assert " % of the input, " in command.said
    assert "\nequal: a plain count gives the same number for each of the " in command.said
    assert str(ROOT) not in command.said
    assert (tmp_path / demo.DATA_DIR / "words.db").is_file()


@pytest.mark.thorough
def test_a_new_topology_runs_once_and_passes_its_tests_out_of_a_wheel(
    environment: Path, tmp_path: Path
) -> None:
    def typed(place: Path, *arguments: str) -> str:
        said = done(
            [environment / arguments[0], *arguments[1:]], place, 0, **variables(environment)
        )
        assert str(ROOT / "txtopo") not in said, "the environment has a package of its own"
        return said

    assert "a run can start here" in typed(tmp_path, "txtopo", "doctor")
    assert "txtopo run word_count.py" in typed(tmp_path, "txtopo", "new", "mine")
    place = tmp_path / "mine"
    run = ("txtopo", "run", "word_count.py", "--until-exhausted", "--master", "local[2]")
    assert (
        "word-count done: 3 transactions committed, 3 tuples, 0 replays; the next run begins at txid 4\n"
        in typed(place, *run)
    )
    assert (
        "word-count done: 0 transactions committed, 0 tuples, 0 replays; the next run begins at txid 4\n"
        in typed(place, *run)
    )
    with (place / "lines.txt").open("a") as lines:
        lines.write("one more cat\n")
    assert (
        "word-count done: 1 transaction committed, 1 tuple, 0 replays; the next run begins at txid 5\n"
        in typed(place, *run)
    )
    assert '{"key": "cat", "value": 4}\n' in typed(
        place, "txtopo", "store", "scan", ".txtopo/word-count.db", "word_count"
    )
    assert "no violation" in typed(place, "txtopo", "test", "word_count.py", "--seeds", "20")
    assert "1 passed" in typed(place, "python", "-m", "pytest", "-q")
