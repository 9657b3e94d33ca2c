"""``check_store`` finds every way to be wrong: for each clause there is a store that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wrong import stores
from txtopo.stores import stamps
from txtopo.testing import ContractError, check_store
from txtopo.testing.contracts import store as contract

FOUND_BY = {
    "a store that was never written reads as empty, and looking does not make it": "exists always",
    "readers see committed results only": "writes in place at once",
    "keys and values come back as they were": "lists for tuples",
    "scan finds strings by their beginning and tuples by their first elements": "prefix too short",
    "a scan is of one state, the key that is the prefix itself among it": "reads twice",
    "a store is configuration only, and pickles even while in use": "holds a lock",
    "several stores share a place without mixing": "one table for all",
    "a key that has no text is refused": "any key",
    "a value that JSON would not give back is refused": "any value",
    "a FailedException in the block passes as it is": "wraps errors",
    "an exception in the function given to update changes nothing and may be handled": "function dooms",
    "what the function does to the old value does not change prev": "shared values",
    "update_many is all or nothing": "half of many",
    "reading inside the function given to update is allowed, updating is not": "function unguarded",
    "the processing phase may not write": "checks nothing",
    "a store of one machine is refused on a cluster, naming why": "checks nothing",
    "a transaction is of no use after its block": "never ends",
    "an attempt raises the fence, and its other tasks pass it": "writes no fence",
    "a late task of an older attempt is refused and changes nothing": "fence never above",
    "a replay and a late task that write at the same moment do not pass each other": "no lock",
    "components and topologies have fences of their own": "one fence for all",
    "a block that raises leaves none of its writes": "writes in place",
    "a refusal that user code swallows still ends the attempt": "refuses without doom",
    "a value of a later transaction is refused, also when another component wrote it": "nothing is ahead",
    "a late task whose update was taken over, and taken back there, is told that it is late": "knows no other fences",
    "a late task whose update was deleted in later transactions is told that it is late": "knows no other fences",
    "a live task whose update others removed is told so": "knows all fences",
    "a value that was taken back to is not changed by a late task of its transaction": "nothing is settled",
    "a late task that meets the key of a newer attempt is late, and no second writer": "nothing is ahead",
    "another generation is refused, naming both and the commands to type": "any generation",
    "a store that is empty although it was written before is refused": "asks for no record",
    "a store cleared between two blocks of one task is noticed": "reports no touch",
    "a store is reported as touched once it has committed": "reports no touch",
    "a store that is new to a component with results in others is refused unless it is expected": "begins anything",
    "a store older or newer than the recorded attempt is refused": "asks for no record",
    "the fence counts the store transactions of its attempt, as its tasks report them": "counts nothing",
    "a store transaction that is rolled back is not counted, and a new attempt is counted anew": "counts on in the next attempt",
    "a task that is run twice in an attempt is counted once": "counts every run",
    "a store that lacks a store transaction of the recorded attempt is refused": "a store that lacks some is complete",
    "a store with more store transactions of the recorded attempt than were recorded is refused": "a store that has more is complete",
    "what lacks a store transaction of the recorded attempt is not shown as of it": "is never outrun",
    "adopting or clearing a store forgets what was counted": "clears no counts",
    "what was counted before a store was adopted is never counted again": "counts on in the next attempt",
    "a task opens no block of a store inside another one of that store": "has no turns",
    "blocks that threads of one task open at the same time are all counted": "refuses a second thread",
    "updates of a key compose across blocks that have others between them": "counts the steps of the last block",
    "merging is exact where a database's integers end": "merges in floating point",
    "what is read as of a transaction is of one state, also if a writer comes after the look at the fences": "looks at the fences first",
    "tasks of one attempt that commit at the same time are all counted": "counts nothing",
    "the fence of a plain store counts the store transactions of its attempt too": "counts nothing",
    "a plain store that lacks a store transaction of the recorded attempt is refused too": "a store that lacks some is complete",
    "what an attempt wrote does not count if the recorded one opened nothing": "takes nothing back",
    "a store that holds an attempt which was never sealed is refused: the state was rewound": "every attempt was sealed",
    "an opaque store is taken back to before an attempt that was never sealed": "takes nothing back",
    "an adopted store goes on from what it holds": "never dry",
    "what a failed attempt made of an adopted value is taken back": "restamps too high",
    "values of a generation that is over count as earlier, whatever their txid": "generations alike",
    "a store newer than its state can be adopted as it is": "adopts openly",
    "an emptied store can be adopted too": "adopts nothing",
    "the results of a renamed topology can be adopted": "adopts only its own",
    "clear removes one topology or one component, and can be tried dry": "removes everything",
    "the worked example of Storm's documentation for transactional values": "nothing is mine",
    "a replay gets what the first application returned": "nothing is mine",
    "a half-applied sequence is completed by its replay": "counts no steps",
    "deleting what is not there is a step like another": "deletes shyly",
    "the first application returns values as a replay will": "raw values",
    "the worked example of Storm's documentation for opaque values": "opaque as transactional",
    "a new attempt takes back what an earlier one wrote and it does not": "takes nothing back",
    "deleted and composed values are taken back whole": "takes one step back",
    "only this component and this transaction are taken back": "takes everything back",
    "what a dead attempt of another component left does not count": "nothing is undone",
    "within an attempt a repeated run of a task is already applied": "nothing is mine",
    "an opaque replay with other tuples leaves nothing of the first": "takes nothing back",
    "several updates of a key compose, within and across blocks": "counts no steps",
    "a block that was rolled back is not counted as a step": "counts steps eagerly",
    "more keys than are held in memory are updated and replayed": "forgets rows",
    "a second writer of a key in one transaction is refused, naming both": "nobody is a rival",
    "deleting counts as writing": "no tombstones",
    "a key of another topology is refused, whatever its txid": "nothing is foreign",
    "what another task writes in the same transaction is never read": "rivals are read",
    "tasks of one attempt may write at the same time": "collides",
    "a transaction under way is not seen as of the recorded one, whatever it does and however often it is tried": "shows what is under way",
    "what a dead attempt left is not seen, though no component has taken it back": "goes by the txid alone",
    "what was taken back to is seen as of its transaction": "nothing is settled for readers",
    "a reader who comes too late is refused, and not given a mixture": "is never outrun",
    "what is shown is fixed when it is asked for, however long it is then read": "reads along",
    "only what the topology itself wrote is shown as of its transactions": "shows what others wrote",
    "a store of another generation, or older than what is recorded, shows nothing as of it": "is never outrun",
    "an adopted store is seen as of the transaction it was adopted at": "nothing is settled for readers",
    "a number alone does not say what is visible": "checks no reader",
    "a plain store cannot be read as of a transaction, and says so": "checks no reader",
    "put sets a value whatever it was, and a replay finds it set": "nothing is mine",
    "putting composes with updates, and is all or nothing": "forgets rows",
    "merging makes of every value what updating makes of it, and leaves the same row": "forgets what was before a merge",
    "merging takes every key that has a text": "loses keys that it merges",
    "a merge is applied once, however often its transaction is replayed": "merges again",
    "what an attempt merged is taken back when the next one begins": "takes nothing back",
    "what a dead attempt of another component left is not merged with": "merges with anything older",
    "what was adopted before the first transaction is combined with, and updated": "adopts nothing",
    "a key of another topology, of another writer or of a later transaction is refused to a merge too": "merges with anybody",
    "merges compose with updates, deletions and readings, within and across blocks": "merges at the end",
    "a merge is all or nothing, and leaves nothing when its block raises": "writes in place",
    "what is merged is seen as of its transaction, and not before": "forgets what was before a merge",
    "values are kept by the codec that the store was given": "ignores the codec",
    "a text that not every database keeps is refused, naming the codec": "any text",
    "a store that was written in another form is refused, and changed only while it is empty": "any form",
    "the last write stands, within a transaction, on a replay, and in the next": "overwrites nothing",
    "what a failed attempt wrote is overwritten, by whichever task, and not taken back": "takes plain values back",
    "updating is refused, with the cure, and so is writing what was read": "updates plain values",
    "a late task of an older attempt, or of an older transaction, is refused and changes nothing in a plain store": "fence never above",
    "a late task whose own fence nobody has raised does not overwrite a newer value of a plain store": "no plain value is ahead",
    "a second writer of a key of a plain store in one attempt is refused, naming both": "nobody is a rival in a plain store",
    "a plain store of another generation or age, or one that was emptied, is refused": "any generation",
    "a block of a plain store that raises leaves nothing, and a written store pickles": "writes in place",
    "tasks of one attempt may write to a plain store at the same time": "collides",
}
"""By claim: the mistake that breaks it."""


@pytest.mark.rule(7, 12, 27, 28, 29, 30, 31, 32)
@pytest.mark.parametrize("clause", contract.STORE_CLAUSES, ids=str)
def test_a_store_that_breaks_a_clause_is_found(
    clause: contract.StoreClause, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, patch = stores.MISTAKES[FOUND_BY[clause.claim]]
    kind: stamps.Kind = next(
        (kind for kind in contract.KINDS if (clause.only or "").startswith(kind)), "transactional"
    )
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
    assert set(FOUND_BY.values()) == set(stores.MISTAKES)


def test_the_whole_check_stops_at_the_first_clause_that_is_broken(tmp_path: Path) -> None:
    factory, _ = stores.MISTAKES["holds a lock"]
    with pytest.raises(ContractError, match=r"^store contract, R12: a store is configuration only"):
        check_store(
            lambda name, **form: factory(tmp_path, name, **form),
            kinds=("transactional",),
            concurrent=False,
        )
