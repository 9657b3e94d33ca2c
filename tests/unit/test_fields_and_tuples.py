"""The names of a tuple's values, a component's declarations, and the tuple of a bolt."""

from __future__ import annotations

import pickle

import pytest

from txtopo import Fields, OutputFieldsDeclarer, StreamSpec, TransactionAttempt, Tuple
from txtopo.topology.stream import TupleSource

ATTEMPT = TransactionAttempt(1, 0)


def test_fields_know_the_place_of_each_name() -> None:
    fields = Fields("tx", "word", "count")
    assert [fields.index(name) for name in fields] == [0, 1, 2]
    assert (len(fields), fields[1], "word" in fields, "wrd" in fields) == (3, "word", True, False)


def test_fields_select_values_in_the_order_asked_for() -> None:
    assert Fields("tx", "word", "count").select(Fields("count", "tx"), ("1:0", "cat", 3)) == (
        3,
        "1:0",
    )


def test_fields_take_names_and_lists_of_names_alike() -> None:
    assert (
        Fields("tx", ["word", "count"])
        == Fields(["tx", "word"], "count")
        == Fields(Fields("tx", "word"), "count")
    )


def test_a_field_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no field 'wrd'\. The fields are 'tx', 'word'"):
        Fields("tx", "word").index("wrd")


def test_a_duplicate_field_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"duplicate field 'a'"):
        Fields("a", "b", "a")


@pytest.mark.parametrize("names", [[""], [1], [None]])
def test_a_field_name_is_a_non_empty_string(names: list[str]) -> None:
    with pytest.raises(ValueError, match="non-empty string"):
        Fields(names)


def test_fields_compare_by_names_and_order_and_survive_pickling() -> None:
    fields = Fields("tx", "word")
    assert fields != Fields("word", "tx")
    assert fields != ("tx", "word")
    assert {fields: 1}[pickle.loads(pickle.dumps(fields))] == 1
    assert repr(fields) == "Fields('tx', 'word')"


def test_a_tuple_answers_by_position_and_by_name() -> None:
    tup = Tuple(
        (ATTEMPT, "cat", 3), TupleSource("split", 2, "words", Fields("tx", "word", "count"))
    )
    assert (tup[1], tup["count"], tup.get_value(1), tup.get_value_by_field("count")) == (
        "cat",
        3,
        "cat",
        3,
    )
    assert (
        tup.get_string(1),
        tup.get_integer_by_field("count"),
        tup.get_long(2),
        tup.get_string_by_field("word"),
    ) == ("cat", 3, 3, "cat")
    assert tup.attempt == ATTEMPT
    assert (tup.source_component, tup.source_task, tup.source_stream_id) == ("split", 2, "words")
    assert tup.select(Fields("count", "word")) == (3, "cat")
    assert (list(tup), len(tup), "cat" in tup, "word" in tup.fields) == (
        [ATTEMPT, "cat", 3],
        3,
        True,
        True,
    )


def test_a_name_a_tuple_does_not_have_is_an_error_that_names_its_fields() -> None:
    tup = Tuple((ATTEMPT, "cat"), TupleSource("split", 0, "default", Fields("tx", "word")))
    with pytest.raises(ValueError, match="'tx', 'word'"):
        tup["count"]
    with pytest.raises(IndexError):
        tup.get_value(2)


def test_a_tuple_survives_pickling_with_its_source() -> None:
    tup = pickle.loads(
        pickle.dumps(
            Tuple((ATTEMPT, "cat"), TupleSource("split", 4, "default", Fields("tx", "word")))
        )
    )
    assert (tup.values, tup["word"], tup.source_component, tup.source_task) == (
        (ATTEMPT, "cat"),
        "cat",
        "split",
        4,
    )


def test_a_tuple_prints_where_it_came_from() -> None:
    tup = Tuple((ATTEMPT, "cat"), TupleSource("split", 4, "words", Fields("tx", "word")))
    assert (
        repr(tup) == "Tuple(split/4/words: tx=TransactionAttempt(txid=1, attempt_id=0), word='cat')"
    )


def test_declaring_takes_fields_or_names() -> None:
    declarer = OutputFieldsDeclarer()
    declarer.declare(Fields("tx", "word"))
    declarer.declare_stream("side", ["tx", "error"], direct=True)
    assert declarer.streams == {
        "default": StreamSpec(Fields("tx", "word")),
        "side": StreamSpec(Fields("tx", "error"), direct=True),
    }


def test_a_stream_is_declared_once() -> None:
    declarer = OutputFieldsDeclarer()
    declarer.declare(Fields("tx"))
    with pytest.raises(ValueError, match="stream 'default' is declared twice"):
        declarer.declare_stream("default", Fields("tx", "word"))


def test_a_stream_has_a_field_for_the_attempt() -> None:
    with pytest.raises(
        ValueError,
        match=r"stream 'default' has no fields\. The first field carries the transaction attempt",
    ):
        OutputFieldsDeclarer().declare(Fields())


@pytest.mark.parametrize("stream", ["", None, 3])
def test_a_stream_id_is_a_non_empty_string(stream: str) -> None:
    with pytest.raises(ValueError, match="non-empty string"):
        OutputFieldsDeclarer().declare_stream(stream, Fields("tx"))


def test_names_given_to_declare_one_by_one_are_not_taken_for_the_direct_flag() -> None:
    with pytest.raises(ValueError, match=r"direct is True or False, not 'word'"):
        OutputFieldsDeclarer().declare("tx", "word")  # type: ignore[arg-type]


def test_a_declared_stream_cannot_be_changed() -> None:
    spec = StreamSpec(Fields("tx", "word"))
    with pytest.raises(AttributeError):
        spec.direct = True  # type: ignore[misc]
    assert repr(spec) == "StreamSpec(Fields('tx', 'word'))"
    assert repr(StreamSpec(Fields("tx"), direct=True)) == "StreamSpec(Fields('tx'), direct=True)"
