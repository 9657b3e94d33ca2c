"""The reasons to refuse a store transaction: two writers of one key, a plain value that was read, a
store changed by another program.

Apart from ``transaction``, which finds the conflicts: the messages for people are in one place.
Standard library only.
"""

from __future__ import annotations

from txtopo import errors


class StoreConflict(Exception):
    """Two writers met at one key: in one transaction, or, if it ``is_foreign``, from two topologies
    (R32). The engine reports it as ``StoreConflictError``."""

    def __init__(
        self,
        store: str,
        key: str,
        first_writer: str,
        second_writer: str,
        txid: int,
        is_foreign: bool = False,
    ) -> None:
        super().__init__(store, key, first_writer, second_writer, txid, is_foreign)
        self.store, self.key, self.first_writer, self.second_writer = (
            store,
            key,
            first_writer,
            second_writer,
        )
        self.txid, self.is_foreign = txid, is_foreign

    def __str__(self) -> str:
        cure = (
            "Give each topology a store of its own, under another name; or keys of its own. A topology that takes the place of another one takes\n"
            "  over the results: `txtopo store adopt ADDRESS NAME --topology ID --from-topology OTHER`."
            if self.is_foreign
            else "A key has one writer per transaction. Group the writer's input with fields_grouping on the key, so that equal keys meet in one\n"
            "  task; a custom grouping must not use hash(), which says something else of a text in every process. Give another component its\n"
            "  own store."
        )
        fact = f"store {self.store}: key {self.key} was written by {self.first_writer}, and {self.second_writer} wants to write it"
        return f"{fact} in transaction {self.txid}\n  {cure}"


def written_after_read(address: str, text: str) -> errors.UsageError:
    """Key ``text`` of a plain store was read, and is to be written in the same transaction."""
    return errors.UsageError(
        f"store {address} is plain, and key {text} was read and is now written in one transaction: on a replay the value read would be this one\n"
        "  Set values that do not depend on the one before; or leave out plain=True, and use update()."
    )


def changed_by_others(address: str, text: str, step: int) -> errors.StateMismatchError:
    """Another program undid a committed write of the attempt."""
    return errors.StateMismatchError(
        f"store {address}: what this attempt did to key {text} is gone (updates committed: {step})\n"
        "  Something other than this topology changed the store meanwhile. Stop that, and run again."
    )
