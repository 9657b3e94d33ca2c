"""The classic mistakes, by name: what each is, how it shows, what to do instead.

Apart from ``diagnosis``, which finds out which one it was, so that all of them can be read here.
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
CHANGES_BY_ITSELF = Mistake(
    "a result that changes from run to run",
    "given the same tuples it emits or stores something else each time: it depends on a clock, on randomness, or on something left behind",
    "Derive everything from the tuples, the txid and the store; or let reset() beside the topology remove what runs leave behind.",
)
EMITS_SOMETHING_ELSE = Mistake(
    "other tuples on replay",
    "the attempt that committed emitted something else than it does without failures",
    "Emit what the store returns: on replay it returns what the first application returned.",
)
