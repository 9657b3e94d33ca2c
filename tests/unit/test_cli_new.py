"""``txtopo new``: a starter in a directory of its own, which is refused where files of the user
are."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from txtopo.command import cli, new

ROOT = Path(__file__).resolve().parents[2]
STARTERS = ROOT / "starter"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", new.KINDS)
def test_a_topology_its_test_its_data_and_a_readme_are_written(name: str, place: Path) -> None:
    assert cli.main(["new", "mine", "--from", name]) == 0
    kind = new.KINDS[name]
    program = kind.files[0]
    assert {path.name for path in (place / "mine").iterdir()} == {
        *kind.files,
        f"test_{program}",
        "README.md",
    }
    for copied in kind.files:
        text, source = (
            (folder / copied).read_text(encoding="utf-8") for folder in (place / "mine", STARTERS)
        )
        assert text == source.replace("starter/", "")
    for file in (place / "mine").iterdir():
        assert "starter/" not in file.read_text(encoding="utf-8")


def test_word_count_is_the_default(place: Path) -> None:
    assert cli.main(["new", "mine"]) == 0
    assert (place / "mine" / "word_count.py").is_file()


def test_an_empty_directory_is_filled_and_parents_are_made(place: Path) -> None:
    (place / "empty").mkdir()
    assert cli.main(["new", "empty"]) == 0
    assert cli.main(["new", "a/b/c"]) == 0
    assert (place / "a" / "b" / "c" / "word_count.py").is_file()


def test_a_directory_with_files_is_refused_and_left_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "precious.txt").write_text("keep")
    assert cli.main(["new", "mine"]) == 2
    assert capsys.readouterr().err.startswith(
        "txtopo: error: mine is not empty\n  Name a directory that is empty, or not there yet: txtopo new mine-2\n"
    )
    assert [path.name for path in (place / "mine").iterdir()] == ["precious.txt"]


def test_the_name_of_a_file_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine").write_text("keep")
    assert cli.main(["new", "mine"]) == 2
    assert (
        "mine is a file\n  Name a directory that is empty, or not there yet"
        in capsys.readouterr().err
    )


def test_a_directory_that_cannot_be_made_is_an_error_with_a_cure(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "file").write_text("")
    assert cli.main(["new", "file/mine"]) == 2
    assert "file/mine cannot be written: " in capsys.readouterr().err


def test_an_unknown_starter_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "mine", "--from", "word-cuont"]) == 2
    refused = capsys.readouterr().err
    assert all(name in refused for name in new.KINDS)


def test_the_commands_to_type_next_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "mine", "--from", "sql"]) == 0
    typed = [
        line.split("#")[0].strip()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    ]
    assert typed == [
        "cd mine",
        "txtopo run sales_table.py",
        "txtopo run sales_table.py",
        "txtopo test sales_table.py",
        "pytest",
    ]


def test_a_directory_with_a_space_is_told_as_a_shell_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["new", "my topology"]) == 0
    assert "  cd 'my topology'\n" in capsys.readouterr().out


def test_every_file_of_every_kind_is_packaged() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        forced = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert forced == {
        f"starter/{name}": f"txtopo/starters/{name}"
        for kind in new.KINDS.values()
        for name in kind.files
    }


def test_an_installation_without_the_starters_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(new, "PLACES", (tmp_path / "neither", tmp_path / "nor"))
    assert cli.main(["new", "mine"]) == 2
    assert "the starters are not installed" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


def test_a_missing_package_of_a_kind_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {"pyarrow", "pytest"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else object()
    )
    assert cli.main(["new", "mine", "--from", "columns"]) == 0
    assert "  pip install 'txtopo[arrow]' pytest\n" in capsys.readouterr().out
