"""``check_store`` finds every way to be wrong: for each clause there is a store that breaks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import store_clauses
from tests.wrong import stores
from txtopo.stores import stamps
from txtopo.testing import ContractError, check_store
from txtopo.testing.contracts import clauses, store_subject
from txtopo.testing.contracts import store as contract

FOUND_BY = {
    "a store never written reads as empty, and readers do not make the store": "exists always",
    "readers see committed results only": "writes in place at once",
    "keys and values come back unchanged": "lists for tuples",
    "scan finds strings by their beginning and tuples by their first elements": "prefix too short",
    "a scan shows one state, also for the key that equals the prefix": "reads twice",
    "a store is configuration only, and pickles even while in use": "holds a lock",
    "several stores share a place without mixing": "one table for all",
    "a key that has no text is refused": "any key",
    "a value that JSON would not give back is refused": "any value",
    "a FailedException in the block passes as it is": "wraps errors",
    "an exception in the function given to update changes nothing and may be handled": "function dooms",
    "a function that changes the old value in place does not change prev": "shared values",
    "update_many is all or nothing": "half of many",
    "reading inside the function given to update is allowed, updating is not": "function unguarded",
    "the processing phase may not write": "checks nothing",
    "a store on one machine is refused on a cluster, with the reason": "checks nothing",
    "a transaction refuses every call after its block": "never ends",
    "an attempt's first task raises the fence, and later tasks pass": "writes no fence",
    "a late task of an older attempt is refused and changes nothing": "fence never above",
    "a replay and a late task that write at the same moment do not pass each other": "no lock",
    "each topology's components have their own fences": "one fence for all",
    "a block that raises leaves none of its writes": "writes in place",
    "a refusal that user code swallows still ends the attempt": "refuses without doom",
    "a later transaction's value is refused, also from another component": "nothing is ahead",
    "a late task is refused as late once later transactions have deleted its update": "knows no other fences",
    "a live task whose update is gone is refused as a state mismatch": "knows all fences",
    "a restored value is not changed by a late task of its transaction": "nothing is settled",
    "another generation is refused, with both generations and the commands to type": "any generation",
    "a store that was written before but is empty is refused": "asks for no record",
    "a store cleared between a task's two blocks is noticed": "reports no touch",
    "a store is reported as touched after its commit": "reports no touch",
    "a component with results in older stores is refused a new store, unless the store is expected": "begins anything",
    "a store older or newer than the recorded attempt is refused": "asks for no record",
    "the fence counts its attempt's store transactions, as the tasks report them": "counts nothing",
    "a rolled back store transaction is not counted, and a new attempt is counted from zero": "counts on in the next attempt",
    "a task run twice in an attempt is counted once": "counts every run",
    "a store that lacks a store transaction of the recorded attempt is refused": "a store that lacks some is complete",
    "a store with more store transactions than were recorded for the attempt is refused": "a store that has more is complete",
    "an incomplete store is not read as of the recorded transaction": "is never outrun",
    "adopting or clearing a store removes the count": "clears no counts",
    "transactions counted before a store was adopted are never counted again": "counts on in the next attempt",
    "a task opens no block inside another block of the same store": "has no turns",
    "blocks that threads of one task open at the same time are all counted": "refuses a second thread",
    "a key's updates compose across blocks, also with blocks for different keys between them": "counts the steps of the last block",
    "merging is exact where a database's integers end": "merges in floating point",
    "a read as of a transaction shows one state, also if a writer comes after the look at the fences": "looks at the fences first",
    "tasks of one attempt may write at the same time, and are all counted": "collides",
    "an attempt's writes are void if the recorded attempt opened nothing": "takes nothing back",
    "a store with an attempt that was never sealed is refused: the state was rewound": "every attempt was sealed",
    "an opaque store undoes an attempt that was never sealed": "takes nothing back",
    "an adopted store goes on from its contents": "never dry",
    "a failed attempt's change to an adopted value is taken back": "restamps too high",
    "values from an ended generation count as earlier, under any txid": "generations alike",
    "a store newer than its state can be adopted as it is": "adopts openly",
    "an emptied store can be adopted too": "adopts nothing",
    "a renamed topology's results can be adopted": "adopts only its own",
    "clear removes a topology or a component, and has a dry run": "removes everything",
    "transactional values follow the worked example in Storm's documentation": "nothing is mine",
    "a replay gets the first application's results": "nothing is mine",
    "a replay completes a half-applied sequence": "counts no steps",
    "deleting an absent key is a step too": "deletes shyly",
    "the first application returns values as a replay does": "raw values",
    "opaque values follow the worked example in Storm's documentation": "opaque as transactional",
    "a new attempt takes back an earlier attempt's writes that it does not repeat": "takes nothing back",
    "deleted and composed values are taken back whole": "takes one step back",
    "taking back is limited to the component and the transaction": "takes everything back",
    "a new transaction forgets its own component's deletions only": "sweeps everything",
    "another component's dead attempt does not count": "nothing is undone",
    "several updates to a key compose, within and across blocks": "counts no steps",
    "a block that was rolled back is not counted as a step": "counts steps eagerly",
    "more keys than are held in memory are updated and replayed": "forgets rows",
    "a key's second writer in one transaction is refused, naming both writers": "no writer is a rival",
    "deleting counts as writing": "no tombstones",
    "another topology's key is refused, under any txid": "nothing is foreign",
    "a task never reads another task's write in the same transaction": "rivals are read",
    "a reader as of the recorded transaction never sees a transaction under way, however often it is tried": "shows what is under way",
    "a dead attempt's writes are not seen, also before they are taken back": "goes by the txid alone",
    "a reader that comes too late is refused, and gets no mixture": "is never outrun",
    "a read shows the state when it was asked for, however long the reading takes": "reads along",
    "a read as of a topology's transaction shows only the topology's own writes": "shows what others wrote",
    "a store of another generation, or older than the record, is not read as of a transaction": "is never outrun",
    "an adopted store is seen as of the transaction it was adopted at": "nothing is settled for readers",
    "a read as of a bare number is refused": "checks no reader",
    "a plain store cannot be read as of a transaction, and says so": "checks no reader",
    "put sets a value over any old value, and a replay finds the value set": "nothing is mine",
    "putting composes with updates, and is all or nothing": "forgets rows",
    "merging and updating make the same values and the same rows": "forgets what was before a merge",
    "merging takes every key that has a text": "loses keys that it merges",
    "a merge is applied once, however often its transaction is replayed": "merges again",
    "an attempt's merges are taken back when the next attempt begins": "takes nothing back",
    "values from another component's dead attempt are not merged with": "merges with anything older",
    "values adopted before the first transaction are merged with and updated": "adopts nothing",
    "a merge too is refused a key of another topology, another writer or a later transaction": "merges with anybody",
    "merges compose with updates, deletions and readings, within and across blocks": "merges at the end",
    "a merge is all or nothing, and leaves nothing when its block raises": "writes in place",
    "values are kept by the store's codec": "ignores the codec",
    "a text that not every database keeps is refused, naming the codec": "any text",
    "a store written in another form is refused, and takes a new form only while empty": "any form",
    "the last write stands, within a transaction, on a replay, and in the next transaction": "overwrites nothing",
    "a failed attempt's writes are overwritten, by any task, and not taken back": "takes plain values back",
    "updates are refused with the cure, and so are writes to a key that was read": "updates plain values",
    "a late task that passes its own fence does not write a key that a newer attempt deleted": "no plain value is ahead",
}
"""By claim: the mistake that breaks it."""

FOUND_IN_A_PLAIN_STORE_BY = {
    **FOUND_BY,
    "a later transaction's value is refused, also from another component": "no plain value is ahead",
    "a key's second writer in one transaction is refused, naming both writers": "no writer is a rival in a plain store",
    "another topology's key is refused, under any txid": "nothing is foreign in a plain store",
}
"""By claim: the mistake that breaks it in a plain store."""


def cases() -> Iterator[Any]:
    """Each clause with a kind of store that must keep it, and with the mistake."""
    for clause in store_clauses.CLAUSES:
        kind = next((kind for kind in contract.KINDS if kind == clause.only), "transactional")
        yield pytest.param(clause, kind, FOUND_BY[clause.claim], id=clause.claim)
        if clause.also is not None:
            mistake = FOUND_IN_A_PLAIN_STORE_BY[clause.claim]
            yield pytest.param(clause, clause.also, mistake, id=f"{clause.also}: {clause.claim}")


CASES = tuple(cases())


@pytest.mark.rule(7, 12, 27, 28, 29, 30, 31, 32)
@pytest.mark.parametrize(("clause", "kind", "mistake"), CASES)
def test_a_store_that_breaks_a_clause_is_found(
    clause: contract.StoreClause,
    kind: stamps.Kind,
    mistake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory, patch = stores.MISTAKES[mistake]
    if patch is not None:
        patch(monkeypatch)
    with pytest.raises(ContractError) as caught:
        contract.check_clause(
            clause, lambda name, **form: factory(tmp_path, name, **form), kind=kind, prefix="wrong"
        )
    error = caught.value
    assert (error.contract, error.rule, error.cure) == (
        "store",
        clause.rules[0] if clause.rules else None,
        clause.cure,
    )
    assert error.what.startswith(f"{clause.claim}: ")
    assert f"{clause.cure}" in str(error)


def test_every_mistake_is_one_of_some_clause() -> None:
    assert {case.values[2] for case in CASES} == set(stores.MISTAKES)
    assert FOUND_BY.keys() == {clause.claim for clause in store_clauses.CLAUSES}


def test_the_whole_check_stops_at_the_first_clause_that_is_broken(tmp_path: Path) -> None:
    factory, _ = stores.MISTAKES["holds a lock"]
    with pytest.raises(ContractError, match=r"^store contract, R12: a store is configuration only"):
        check_store(
            lambda name, **form: factory(tmp_path, name, **form),
            kinds=("transactional",),
            concurrent=False,
        )


def test_a_thread_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(store_subject, "_WAIT_S", 0.0)
    try:
        with pytest.raises(clauses.BrokenClauseError, match="a thread did not end within 0 s"):
            store_subject.at_once(1, lambda number: goes_on.wait())
    finally:
        goes_on.set()
