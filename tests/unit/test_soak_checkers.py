"""The checkers of the soak do their work: honest histories pass, and each kind of doctored history
fails."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.soak.sources import PARTITIONS
from tests.soak.workloads.append import TAKE, AppendChecker, Keys
from tests.soak.workloads.bank import BankChecker, Transfers
from tests.soak.workloads.base import differences
from tests.soak.workloads.opaque import Animals, OpaqueChecker
from tests.soak.workloads.words import BUCKET_SIZE, Lines, WordsChecker

SEED = 11


# -- bank ----------------------------------------------------------------------------------------


def bank_after(*rows: int) -> dict[str, int]:
    """The store after so many rows of each partition."""
    balances: Counter[str] = Counter()
    for partition, count in enumerate(rows):
        for index in range(count):
            _, source, target, amount = Transfers(SEED).row(partition, index)
            balances[f"account {source}"] -= amount
            balances[f"account {target}"] += amount
        balances[f"rows {partition}"] += count
    return dict(balances)


def bank_checker() -> BankChecker:
    return BankChecker(Transfers(SEED))


def test_an_honest_bank_passes_every_read() -> None:
    checker = bank_checker()
    assert [
        checker.read("bank", bank_after(*rows), 12)
        for rows in [(0, 0), (6, 0), (6, 0), (6, 6), (12, 6)]
    ] == [[]] * 5
    assert checker.end({"bank": bank_after(12, 12)}, 12) == []


def test_money_out_of_nowhere_is_found() -> None:
    seen = bank_after(6, 6)
    seen["account 0"] = seen.get("account 0", 0) + 1
    first, second = bank_checker().read("bank", seen, 12)
    assert first == "bank: the total is 801, it was 800"
    assert "after rows {0: 6, 1: 6}: 'account 0' is" in second


def test_a_batch_that_was_applied_twice_is_found_although_the_total_is_right() -> None:
    once, seen = bank_after(6, 6), bank_after(6, 6)
    for index in range(6):
        _, source, target, amount = Transfers(SEED).row(0, index)
        seen[f"account {source}"] -= amount
        seen[f"account {target}"] += amount
    assert sum(value for key, value in seen.items() if key.startswith("account")) == 0
    assert once != seen
    (wrong,) = bank_checker().read("bank", seen, 12)
    assert wrong.startswith("bank: after rows {0: 6, 1: 6}")


def test_a_transfer_that_was_booked_on_one_side_only_is_found() -> None:
    seen = bank_after(6, 6)
    _, source, _, amount = Transfers(SEED).row(0, 5)
    seen[f"account {source}"] += amount
    assert f"bank: the total is {800 + amount}, it was 800" in bank_checker().read("bank", seen, 12)


def test_a_bank_that_goes_back_is_found() -> None:
    checker = bank_checker()
    assert checker.read("bank", bank_after(6, 6), 12) == []
    assert checker.read("bank", bank_after(0, 6), 12) == [
        "bank: a read went back: rows {0: 0, 1: 6} of each partition, after {0: 6, 1: 6}"
    ]


def test_transfers_without_an_order_are_found() -> None:
    assert "of 6 that there are" in bank_checker().read("bank", bank_after(12, 6), 6)[0]


def test_transfers_that_are_missing_in_the_end_are_found() -> None:
    assert bank_checker().end({"bank": bank_after(12, 6)}, 12) == [
        "bank: only rows {1: 6} of partitions were applied, of 12"
    ]


# -- append --------------------------------------------------------------------------------------


def lists_after(transactions: int) -> dict[str, list[int]]:
    """The store after so many transactions."""
    lists: dict[str, list[int]] = {}
    for txid in range(1, transactions + 1):
        for key in Keys(SEED).touched(txid):
            lists.setdefault(key, []).append(txid)
    return lists


def append_checker() -> AppendChecker:
    return AppendChecker(Keys(SEED))


def last_touched(transactions: int) -> list[str]:
    return sorted(
        key for key, txids in lists_after(transactions).items() if txids[-1] == transactions
    )


def test_honest_lists_pass_also_with_the_newest_transaction_in_part() -> None:
    checker = append_checker()
    partly = lists_after(7)
    assert len(last_touched(7)) > 1
    partly[last_touched(7)[0]].pop()
    assert [
        checker.read("append", seen, 50) for seen in ({}, lists_after(6), partly, lists_after(7))
    ] == [[]] * 4
    assert checker.end({"append": lists_after(10)}, 10 * TAKE) == []


def doctored(kind: str) -> dict[str, list[int]]:
    """The lists after ten transactions, with one thing wrong."""
    lists = lists_after(10)
    longest = max(sorted(lists), key=lambda key: len(lists[key]))
    if kind == "twice":
        lists[longest].insert(1, lists[longest][0])
    elif kind == "out of order":
        lists[longest][0], lists[longest][1] = lists[longest][1], lists[longest][0]
    elif kind == "lost":
        del lists[longest][1]
    elif kind == "two in part":
        assert last_touched(9)
        key = next(key for key in last_touched(9) if 9 in lists[key])
        lists[key].remove(9)
    elif kind == "not touched":
        key = next(key for key in lists if 10 not in lists[key])
        lists[key].append(10)
    return lists


@pytest.mark.parametrize(
    ("kind", "violation"),
    [
        ("twice", "has a transaction twice"),
        ("out of order", "is out of order"),
        ("lost", "differs in transactions"),
        ("two in part", "differs in transactions [9], while transaction 10 is there"),
        ("not touched", "has transaction 10, which does not touch it"),
    ],
)
def test_lists_with_one_thing_wrong_are_found(kind: str, violation: str) -> None:
    assert any(
        violation in wrong for wrong in append_checker().read("append", doctored(kind), 10 * TAKE)
    )


def test_a_list_that_loses_its_end_between_two_reads_is_found() -> None:
    checker = append_checker()
    assert checker.read("append", lists_after(10), 50) == []
    shorter = lists_after(10)
    shorter[last_touched(10)[0]].pop()
    (wrong,) = checker.read("append", shorter, 50)
    assert wrong.startswith("append: a read went back")


def test_a_transaction_that_cannot_be_there_yet_is_found() -> None:
    assert append_checker().read("append", lists_after(3), 2 * TAKE) == [
        "append: there is transaction 3, of 2"
    ]


def test_a_list_that_is_not_complete_in_the_end_is_found() -> None:
    lists = lists_after(10)
    lists[last_touched(10)[0]].pop()
    (wrong,) = append_checker().end({"append": lists}, 10 * TAKE)
    assert wrong.startswith("append: in the end")
    assert append_checker().end({"append": {}}, TAKE) != []


# -- opaque --------------------------------------------------------------------------------------


def counts_of(places: list[str]) -> dict[str, int]:
    """A store's content if exactly ``places`` were counted."""
    counts: Counter[str] = Counter()
    for place in places:
        counts[f"tuple {place}"] += 1
        counts[f"word {Animals(SEED).word(place)}"] += 1
    return dict(counts)


EVERY = [f"{partition}/{index}" for partition in range(PARTITIONS) for index in range(8)]


def opaque_checker() -> OpaqueChecker:
    return OpaqueChecker("opaque", Animals(SEED))


def test_honest_counts_pass_also_when_writes_of_a_failed_attempt_vanish() -> None:
    checker = opaque_checker()
    assert [checker.read("opaque", counts_of(EVERY[:upto]), 8) for upto in (0, 5, 3, 9)] == [[]] * 4
    assert checker.end({"opaque": counts_of(EVERY)}, 8) == []


def test_a_tuple_that_counts_twice_is_found_and_named() -> None:
    wrong = opaque_checker().read("opaque", counts_of([*EVERY, "1/3"]), 8)
    assert wrong == ["opaque: tuple 1/3 counts 2 times (and 0 others are not once)"]


def test_a_word_that_was_counted_without_its_tuple_is_found() -> None:
    seen = counts_of(EVERY)
    seen["word cat"] = seen.get("word cat", 0) + 1
    (wrong,) = opaque_checker().read("opaque", seen, 8)
    assert wrong.startswith(
        "opaque: counts are not what the tuples beside them add up to: 'cat' is"
    )


def test_a_tuple_that_does_not_exist_is_found() -> None:
    assert (
        opaque_checker()
        .read("opaque", counts_of(EVERY), 7)[0]
        .startswith("opaque: tuple 0/7 does not exist yet")
    )


def test_a_tuple_that_is_lost_in_the_end_is_found_and_named() -> None:
    left = [place for place in EVERY if place != "0/4"]
    assert opaque_checker().end({"opaque": counts_of(left)}, 8) == [
        "opaque: tuple 0/4 is lost (and 0 others)"
    ]


# -- words ---------------------------------------------------------------------------------------


def words_after(rows: int) -> dict[str, Any]:
    """Both stores after so many rows of each partition."""
    lines = Lines(SEED)
    counts = Counter(
        word
        for partition in range(PARTITIONS)
        for index in range(rows)
        for word in lines.row(partition, index)[0].split()
    )
    return {
        "words": dict(counts),
        "buckets": dict(Counter(count // BUCKET_SIZE for count in counts.values())),
    }


def words_checker() -> WordsChecker:
    return WordsChecker(Lines(SEED))


def test_honest_words_pass() -> None:
    checker = words_checker()
    for rows in (0, 10, 10, 60):
        for store, seen in words_after(rows).items():
            assert checker.read(store, seen, 60) == []
    assert checker.end(words_after(60), 60) == []


def test_a_word_that_counts_too_much_is_found_at_once() -> None:
    seen = words_after(20)
    word = sorted(seen["words"])[0]
    seen["words"][word] += 1
    (wrong,) = words_checker().read("words", seen["words"], 20)
    assert wrong.startswith(f"words: {word!r} counts")


def test_a_word_that_is_counted_less_than_before_is_found() -> None:
    checker = words_checker()
    assert checker.read("words", words_after(20)["words"], 40) == []
    (wrong,) = checker.read("words", words_after(10)["words"], 40)
    assert wrong.startswith("words: a read went back")


def test_a_word_that_is_lost_in_the_end_is_found() -> None:
    seen = words_after(20)
    seen["words"].pop(sorted(seen["words"])[0])
    assert words_checker().end(seen, 20)[0].startswith("words: 'word")


def test_a_word_in_the_wrong_bucket_is_found() -> None:
    seen = words_after(60)
    assert len(seen["buckets"]) > 1, "the words must fill more than one bucket"
    seen["buckets"][0] += 1
    assert words_checker().end(seen, 60)[0].startswith("words: buckets: 0 is")
    assert words_checker().read("buckets", {0: 3, 1: -1}, 60) == [
        "words: there are -1 words in bucket 1"
    ]


def test_differences_are_shown_in_part_when_there_are_many() -> None:
    assert differences({"a": 1}, {"a": 1}) == ""
    assert differences(
        {str(n): n for n in range(9)}, {}
    ) == "'0' is None, not 0, '1' is None, not 1, '2' is None, not 2, '3' is None, not 3, " + (
        "'4' is None, not 4 and 4 more"
    )
