"""``txtopo explain`` of every starter and of the demo, pinned as text: no plan changes unnoticed.

If it should change, make the pinned file anew with the command that a failure shows::

    txtopo explain starter/transactional_words.py --format text > tests/unit/plans/transactional_words.text.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from txtopo import demo
from txtopo.command import cli

ROOT = Path(__file__).resolve().parents[2]
PLANS = Path(__file__).parent / "plans"
FILES = [
    # A bucket with orders must be there to plan s3_orders.
    *(
        path
        for path in sorted((ROOT / "starter").glob("*.py"))
        if path.stem not in ("__init__", "s3_orders")
    ),
    demo.FILE,
]
FORMATS = ("mermaid", "text")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_plan_of_a_topology_is_the_pinned_one(
    file: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = PLANS / f"{file.stem}.{format}.txt"
    command = f"txtopo explain {file.relative_to(ROOT)} --format {format}"
    assert cli.main(["explain", str(file), "--format", format]) == 0
    assert pinned.is_file(), f"pin it: {command} > {pinned.relative_to(ROOT)}"
    assert capsys.readouterr().out == pinned.read_text(), (
        f"if the plan should have changed: {command} > {pinned.relative_to(ROOT)}"
    )


def test_every_pinned_plan_is_of_such_a_topology() -> None:
    assert sorted(path.name for path in PLANS.iterdir()) == sorted(
        f"{file.stem}.{format}.txt" for file in FILES for format in FORMATS
    )


def test_the_master_says_how_many_cores_to_plan_for(capsys: pytest.CaptureFixture[str]) -> None:
    for master, planned in [
        ("local", "1 core"),
        ("local[7]", "7 cores"),
        ("local[3,4]", "3 cores"),
        ("local-cluster[2,2,1024]", "4 cores"),
    ]:
        assert (
            cli.main(
                ["explain", str(ROOT / "starter" / "transactional_words.py"), "--master", master]
            )
            == 0
        )
        assert f"planned for {planned}\n" in capsys.readouterr().out


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local[x]", "local[0]", ""])
def test_a_master_that_does_not_say_how_many_cores_there_are_is_refused(
    master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["explain", str(ROOT / "starter" / "transactional_words.py"), "--master", master])
        == 2
    )
    assert "does not say how many cores there are\n  Give local[N]" in capsys.readouterr().err
