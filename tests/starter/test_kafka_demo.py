"""``make kafka-demo`` over a part of its lines."""

from __future__ import annotations

import pytest

from tests import kafka_demo


@pytest.mark.thorough
def test_the_demo_kills_a_topology_in_the_middle_and_finds_every_line_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert kafka_demo.main(files=300) == 0
    said = capfd.readouterr()
    assert "txtopo: kafka-demo resumes at txid " in said.err
    assert said.out.endswith("equal: every line is there once, and in order\n")


def test_a_line_that_is_missing_is_noticed() -> None:
    lines = [[b"a", b"b"], [], [b"c"], []]
    whole = [[b"0 a", b"1 b"], [], [b"0 c"], []]
    assert kafka_demo.is_each_there_once(lines, whole)
    for records in (
        [[b"0 a"], [], [b"0 c"], []],
        [[b"0 a", b"1 b"], [b"0 c"], [], []],
        [[b"1 b", b"0 a"], [], [b"0 c"], []],
    ):
        assert not kafka_demo.is_each_there_once(lines, records)
