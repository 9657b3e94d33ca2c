"""Lists the classic mistakes by name, each with its reason and its cure. ``diagnosis`` recognises
them."""

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
    "the component writes to the outside before its turn to commit: a failed attempt has written all the same, and its replay writes again",
    "Keep the data in an attribute, make the bolt a committer, and write in finish_batch.",
)
TRUSTS_ARRIVAL = Mistake(
    "a target that trusts the order of arrival",
    "entries come again, also after newer ones: from an exporter that died after it had told them, or that slept",
    "Keep entry.sequence with each key in the target, also of keys that are gone, and write an entry only if its sequence is higher.",
)
MODULE_GLOBAL = Mistake(
    "state kept in a global",
    "the component keeps a value in a variable of its module or class: the value outlives a failed attempt, and is lost with the process",
    "Keep the value in the bolt's attribute, which is new for every attempt, or in a store.",
)
OUTSIDE_THE_STORE = Mistake(
    "a write outside the store transaction",
    "beside its store the component writes to another place, and a replay cannot tell that the other write was done before",
    "Write both in one store transaction, or write to the other place in a repeatable way, such as to a file named after the txid.",
)
OLDER_AFTER_NEWER = Mistake(
    "an older transaction is applied after a newer one",
    "the component applies its batch whenever the stored txid is another one: an earlier attempt's task that runs late, when a later"
    " transaction has committed, applies its batch once more",
    "Compare the order, not equality: apply only if the stored txid is lower, and fence by attempt, in one database transaction.",
)
APPLIED_AGAIN = Mistake(
    "applied again on replay",
    "finish_batch writes at every call, and is called once per attempt: the stored value does not tell which transactions it contains",
    "Keep the txid beside the value and apply a transaction once, or use a store from txtopo.stores, which does both.",
)
HASH = Mistake(
    "a result that depends on hash()",
    "given the same tuples, the component emits or stores other values in another process: hash() of a str or bytes, and the order in a set of str,"
    " differ from process to process",
    "Use fields_grouping, which hashes the same everywhere, or zlib.crc32 of the encoded text. Sort the items of a set.",
)
CLOCK = Mistake(
    "a result that depends on the clock",
    "the component reads the clock, and a replay reads the clock hours, days or months later",
    "Take context.opened_at: the time at which the transaction was opened, the same in every attempt and after every restart.",
)
CHANGES_BY_ITSELF = Mistake(
    "a result that changes from run to run",
    "given the same tuples, the component emits or stores other values each time: it depends on chance, or on data left behind",
    "Derive everything from the tuples, the txid and the store, or let reset() beside the topology remove the data that runs leave behind.",
)
EMITS_SOMETHING_ELSE = Mistake(
    "other tuples on replay",
    "the committed attempt emitted other tuples than a run without failures",
    "Emit the store's result: on replay the store returns the first application's result.",
)
CHANCE = Mistake(
    "a result that depends on chance",
    "given the same tuples, the component emits or stores other values in every attempt: it draws numbers or names",
    "Draw from random.Random(txid), or derive the value from the tuples.",
)
A_THREAD = Mistake(
    "work in a thread of its own",
    "a thread's progress at the end of the hook differs from attempt to attempt, and so does the order in which threads end",
    "Do the work in the hook. If threads are needed, wait for all of them before the hook returns, and take their results in a fixed order.",
)
AN_ADDRESS = Mistake(
    "a result that depends on id()",
    "id() is an object's address in one process's memory, and differs from attempt to attempt",
    "Number or name things by their values.",
)
ANOTHER_ORDER = Mistake(
    "an order that is not the same again",
    "given equal input, the component emits the same tuples in another order, and a component downstream depends on the order",
    "Before you emit them, sort the items of a set, and of any collection that was filled in a random order.",
)
OTHER_TASKS = Mistake(
    "tuples go to other tasks on replay",
    "the same tuples come to other tasks than before, so two tasks may write the same key, or their counts differ",
    "Let the custom grouping choose by the values alone, never by hash(), chance, a clock or remembered values. Or use fields_grouping.",
)
READS_AHEAD = Mistake(
    "a store is read in the processing phase",
    "the component reads a store while earlier transactions have not yet committed: the values depend on their progress",
    "Read in finish_batch, in a committer or in a bolt downstream of a committer: earlier transactions are in the store by then.",
)
LEFT_BEHIND = Mistake(
    "a result that depends on what failed before",
    "given the same tuples, the component emits or stores other values after an attempt has failed, or has run in another place",
    "Derive everything from the tuples, the txid and the store: only attributes that prepare makes are new in every attempt."
    " The attempt's number, context.resource, os.environ and caches may be different in a replay.",
)
NOT_FROM_METADATA = Mistake(
    "a batch that is not made from its metadata",
    "from the same metadata the spout emits other tuples in a replay, so the replay is another batch",
    "Emit from the metadata alone, which says where the batch begins and ends. The source's present rows and earlier emissions must not count.",
)
TAKEN_AWAY = Mistake(
    "a source that gives its tuples once",
    "a tuple is gone from the source before its transaction has committed, so no attempt can emit it again",
    "Take nothing away when a batch is opened or emitted. Acknowledge in commit(attempt) of a committer spout, or in cleanup_before(txid).",
)
POSITION_ELSEWHERE = Mistake(
    "a position outside of the metadata",
    "after a failure or a restart the next batch does not begin where the last batch's metadata ends, so tuples are lost or doubled",
    "Begin where the metadata given to the hook ends. Keep positions nowhere else: not in the coordinator, the emitter or a global.",
)
SPOUT_GLOBAL = Mistake(
    "a spout that keeps state in a global",
    "the spout keeps a value in a variable of its module or class: the value is lost with the process, and differs between processes",
    "Keep positions in the batch's metadata, and clients in context.resource.",
)

BY_CLUE: dict[str, Mistake] = {
    "clock": CLOCK,
    "chance": CHANCE,
    "thread": A_THREAD,
    "address": AN_ADDRESS,
    "hash": HASH,
}
"""A differing component's mistake, by the clue in its code."""
