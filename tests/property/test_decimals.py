"""Decimals of files and of bolts: a column holds the very number, or it is refused.

Arrow's own parser of decimals lets some digits overflow, takes others for zero, and crashes on very
small exponents.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.test_hostile_numbers import SMALLEST, csv_answer, json_answer
from txtopo.dataplane.column_runs import ColumnMistakeError
from txtopo.dataplane.columns import batches

DECIMALS = [
    pa.decimal32(5, 2),
    pa.decimal32(9, 0),
    pa.decimal64(10, 2),
    pa.decimal64(18, 18),
    pa.decimal128(5, 2),
    pa.decimal128(38, 10),
    pa.decimal128(38, 38),
    pa.decimal128(38, 0),
    pa.decimal128(10, -2),
    pa.decimal256(76, 20),
    pa.decimal256(76, 76),
]
TEXTS = st.builds(
    lambda sign, whole, broken, exponent: f"{sign}{int(whole)}{broken}{exponent}",
    st.sampled_from(["", "-"]),
    st.integers(1, 80).flatmap(lambda digits: st.text("0123456789", min_size=1, max_size=digits)),
    st.just("") | st.text("0012345", min_size=1, max_size=45).map(lambda digits: "." + digits),
    st.just("")
    | st.sampled_from(
        [0, 1, 2, 3, 10, 37, 38, 40, 76, 77, 100, 255, 256, 308, 2**31 - 1, 2**31, 2**32 + 2]
    ).map("e{}".format)
    | st.sampled_from(
        [1, 2, 3, 10, 37, 38, 39, 40, 76, 77, 100, 255, 256, 308, 2**31 - 1, 2**31, 2**32 + 2]
    ).map("E-{}".format),
)


def fits(number: Decimal, type: pa.DataType) -> bool:
    """Whether ``number`` is one of ``type``, said independently of the source."""
    with decimal.localcontext() as context:
        context.prec, context.Emin, context.Emax = 400, decimal.MIN_EMIN, decimal.MAX_EMAX
        if not number.is_finite() or (number and abs(number.adjusted()) > 200):
            return False
        return not number or (
            number.normalize().as_tuple().exponent >= -type.scale
            and number.adjusted() < type.precision - type.scale
        )


@pytest.mark.rule(38)
@examples(100)
@given(text=TEXTS, type=st.sampled_from(DECIMALS))
@example(text="-7.4", type=pa.decimal128(38, 38))
@example(text="28e-39", type=pa.decimal128(38, 0))
@example(text="97731.4", type=pa.decimal64(18, 18))
@example(text="4.8e-308", type=pa.decimal32(5, 2))
@example(text="1." + "0" * 42, type=pa.decimal32(5, 2))
def test_a_decimal_is_the_number_that_was_read_or_emitted(
    tmp_path_factory: pytest.TempPathFactory, text: str, type: pa.DataType
) -> None:
    tmp_path, number = tmp_path_factory.getbasetemp(), Decimal(text)
    assert csv_answer(tmp_path, text, type) == (
        [(None, "x"), (number, "1e5")] if fits(number, type) else (str(tmp_path / "a.csv"), 7)
    )
    of_json = json_answer(tmp_path, text, type)
    if isinstance(of_json, list):
        assert of_json == [(None, "1e5"), (number, "3e12")]
    else:
        # A number that is written with more digits than its column has is refused, also if the
        # digits say nothing.
        assert of_json == (str(tmp_path / "a.json"), 12)
        _, digits, exponent = number.as_tuple()
        assert not fits(number, type) or len(digits) + abs(int(exponent)) > type.precision
    for value, wanted, expected in [
        (number, type, number),
        ([{"c": number}], pa.list_(pa.struct([("c", type)])), [{"c": number}]),
    ]:
        rows, schema = [("attempt", None), ("attempt", value)], pa.schema([("a", wanted)])
        if fits(number, type):
            batch = batches.from_rows(rows, ["a"], schema, "here")
            assert [row[1] for row in batches.rows(batch, "attempt")] == [None, expected]
        else:
            with pytest.raises(ColumnMistakeError, match="row 2 of 2 is "):
                batches.from_rows(rows, ["a"], schema, "here")


@pytest.mark.rule(38)
@pytest.mark.parametrize("text", [SMALLEST, f"-{SMALLEST}", f'"{SMALLEST}"', "0E-2147483647"])
def test_the_smallest_decimal_does_not_end_the_process(tmp_path: Path, text: str) -> None:
    for type in (pa.decimal128(38, 10), pa.decimal256(76, 20), pa.decimal64(10, 2)):
        assert json_answer(tmp_path, text, type) == (str(tmp_path / "a.json"), 12)
        if "9" in text:
            assert csv_answer(tmp_path, text, type) == (str(tmp_path / "a.csv"), 7)
