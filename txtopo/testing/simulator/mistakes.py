"""The classic mistakes by name, each with its reason, its symptom and its cure.

Apart from ``diagnosis``, which recognises a mistake, so that the list can be read alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One class of mistakes."""

    name: str
    why: str
    cure: str


WRITE_WHILE_PROCESSING = Mistake(
    "a write in the processing phase",
    "it writes to the outside before its turn to commit: an attempt that fails afterwards has written all the same, and its replay writes again",
    "Keep what is to be written in an attribute, make the bolt a committer, and write in finish_batch.",
)
MODULE_GLOBAL = Mistake(
    "state kept in a global",
    "it keeps something in a variable of its module or class: that outlives an attempt that failed, and is lost with the process",
    "Keep it in an attribute of the bolt, which is new for every attempt, or in a store.",
)
OUTSIDE_THE_STORE = Mistake(
    "a write outside the store transaction",
    "beside what it writes through the store it writes elsewhere, and nothing tells a replay that this was done before",
    "Write both in one transaction of one store; or write elsewhere what can be written twice, such as a file named after the txid.",
)
OLDER_AFTER_NEWER = Mistake(
    "an older transaction is applied after a newer one",
    "it takes what is stamped with another txid for what is not yet applied; a task of an earlier attempt that runs late, when a later"
    " transaction has committed, applies its batch once more",
    "Compare the order, not equality: apply only if the stored txid is lower, and fence by attempt, in one transaction of the database.",
)
APPLIED_AGAIN = Mistake(
    "applied again on replay",
    "finish_batch writes whenever it is called, and it is called once per attempt: nothing tells which transactions are in what it finds",
    "Keep the txid beside the value and apply a transaction once, or use a store of txtopo.stores, which does that.",
)
HASH = Mistake(
    "a result that depends on hash()",
    "given the same tuples it emits or stores something else in another process: hash() of a str or bytes, and the order of a set of them,"
    " differ from process to process",
    "Use fields_grouping, which hashes the same everywhere, or zlib.crc32 of the encoded text; sort what comes out of a set.",
)
CLOCK = Mistake(
    "a result that depends on the clock",
    "it asks what time it is, and a replay asks hours, days or months later",
    "Take context.opened_at: the time at which the transaction was opened, the same in every attempt and after every restart.",
)
CHANGES_BY_ITSELF = Mistake(
    "a result that changes from run to run",
    "given the same tuples it emits or stores something else each time: it depends on randomness, or on something left behind",
    "Derive everything from the tuples, the txid and the store; or let reset() beside the topology remove what runs leave behind.",
)
EMITS_SOMETHING_ELSE = Mistake(
    "other tuples on replay",
    "the attempt that committed emitted something else than it does without failures",
    "Emit what the store returns: on replay it returns what the first application returned.",
)
CHANCE = Mistake(
    "a result that depends on chance",
    "given the same tuples it emits or stores something else in every attempt: it draws numbers or names",
    "Draw from random.Random(txid), or derive the value from the tuples.",
)
A_THREAD = Mistake(
    "work in a thread of its own",
    "what a thread has done when the hook returns differs from attempt to attempt, and so does the order in which threads end",
    "Do the work in the hook. If threads are needed, wait for all of them before the hook returns, and take their results in a fixed order.",
)
AN_ADDRESS = Mistake(
    "a result that depends on id()",
    "id() is where an object lies in the memory of one process: it differs from attempt to attempt",
    "Number or name things by their values.",
)
ANOTHER_ORDER = Mistake(
    "an order that is not the same again",
    "given the same tuples it emits the same tuples in another order, and a component downstream depends on the order",
    "Sort what comes out of a set, or out of anything that was filled in an order of chance, before it is emitted.",
)
OTHER_TASKS = Mistake(
    "tuples go to other tasks on replay",
    "the same tuples come to other tasks than before, so two tasks may write the same key, or each counts something else",
    "Let the custom grouping choose by the values alone, never by hash(), chance, a clock or what it remembers; or use fields_grouping.",
)
READS_AHEAD = Mistake(
    "a store is read in the processing phase",
    "it reads a store while earlier transactions have not yet committed: what it finds depends on how far they have come",
    "Read in finish_batch of a committer, or of a bolt downstream of a committer: earlier transactions are in the store by then.",
)
LEFT_BEHIND = Mistake(
    "a result that depends on what failed before",
    "given the same tuples it emits or stores something else when an attempt before it has failed, or ran elsewhere",
    "Derive everything from the tuples, the txid and the store: only attributes that prepare makes are new in every attempt."
    " The attempt's number, context.resource, os.environ and caches are not the same again.",
)
NOT_FROM_METADATA = Mistake(
    "a batch that is not made from its metadata",
    "asked to emit the same metadata again, it emits other tuples, so a replay is another batch",
    "Emit from the metadata alone: it says where the batch begins and where it ends, whatever the source has now and whatever was emitted before.",
)
TAKEN_AWAY = Mistake(
    "a source that gives its tuples once",
    "a tuple is gone from the source before its transaction has committed, so nothing can emit it again",
    "Take nothing away when a batch is opened or emitted. Acknowledge in commit(attempt) of a committer spout, or in cleanup_before(txid).",
)
POSITION_ELSEWHERE = Mistake(
    "a position outside of the metadata",
    "after a failure or a restart the next batch does not begin where the metadata of the last one ends, so tuples are lost or doubled",
    "Begin where the metadata given to the hook ends. Keep positions nowhere else: not in the coordinator, the emitter or a global.",
)
SPOUT_GLOBAL = Mistake(
    "a spout that keeps state in a global",
    "it keeps something in a variable of its module or class: that is lost with the process, and other processes have another",
    "Keep positions in the metadata of the batch, and clients in context.resource.",
)

BY_CLUE: dict[str, Mistake] = {
    "clock": CLOCK,
    "chance": CHANCE,
    "thread": A_THREAD,
    "address": AN_ADDRESS,
    "hash": HASH,
}
"""The mistake of a component that differs, by the clue in its code."""
