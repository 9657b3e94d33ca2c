"""A buffer that goes to local disk beyond a bound."""

from __future__ import annotations

import pytest

from txtopo.dataplane.spill import SpillBuffer


@pytest.mark.parametrize("bound", [0, 1, 5, 7, 100])
def test_appended_chunks_can_be_read_in_any_order_under_any_bound(bound: int) -> None:
    buffer = SpillBuffer(bound)
    data = [b"abc", b"", b"defg", b"h" * 50, b"i"]
    handles = [buffer.append(item) for item in data]
    assert [buffer.read(handle) for handle in reversed(handles)] == data[::-1]
    assert buffer.read(handles[0]) == b"abc", "and again"
    late = buffer.append(b"late")
    assert (buffer.read(late), buffer.read(handles[3])) == (b"late", b"h" * 50)
    buffer.close()


def test_within_the_bound_nothing_goes_to_disk() -> None:
    buffer = SpillBuffer(6)
    assert [buffer.append(b"abc"), buffer.append(b"def")] == [b"abc", b"def"]
    assert buffer.append(b"g") == (0, 1)
    buffer.close()


def test_a_small_item_after_a_large_one_still_fits_into_memory() -> None:
    buffer = SpillBuffer(3)
    assert buffer.append(b"x" * 10) == (0, 10)
    assert buffer.append(b"abc") == b"abc"
    buffer.close()


def test_closing_twice_and_closing_without_a_spill_is_fine() -> None:
    buffer = SpillBuffer(0)
    buffer.append(b"abc")
    buffer.close()
    buffer.close()
    SpillBuffer(0).close()
