"""Errors that refuse a store transaction: two writers for one key, a plain value that was read, a
store changed by another program.

``steps`` finds the conflicts. Standard library only.
"""

from __future__ import annotations

from txtopo import errors


class StoreConflict(Exception):
    """Two writers met at one key: in one transaction, or from two topologies if ``is_foreign``
    (R32). The engine reports a ``StoreConflictError``."""

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
        self.store = store
        self.key = key
        self.first_writer = first_writer
        self.second_writer = second_writer
        self.txid, self.is_foreign = txid, is_foreign

    def __str__(self) -> str:
        cure = (
            "Give each topology its own store, under a different name, or its own keys. A topology that replaces an older topology takes over\n"
            "  the results: `txtopo store adopt ADDRESS NAME --topology ID --from-topology OTHER`."
            if self.is_foreign
            else "A key has one writer per transaction. Group the writer's input with fields_grouping on the key, so that equal keys meet in one\n"
            "  task. A custom grouping must not use hash(), whose result for a text differs between processes. Give each component its\n"
            "  own store."
        )
        fact = f"store {self.store}: key {self.key} was written by {self.first_writer}, and {self.second_writer} wants to write it"
        return f"{fact} in transaction {self.txid}\n  {cure}"


def written_after_read(address: str, text: str) -> errors.UsageError:
    """In a plain store, key ``text`` was read, and is to be written in the same transaction."""
    return errors.UsageError(
        f"store {address} is plain, and key {text} was read and is now written in one transaction: a replay would read the new value\n"
        "  Set values that do not depend on earlier values. Or leave out plain=True, and use update()."
    )


def changed_by_others(address: str, text: str, step: int) -> errors.StateMismatchError:
    """Another program undid a committed write of the attempt."""
    return errors.StateMismatchError(
        f"store {address}: this attempt's update of key {text} is gone (updates committed: {step})\n"
        "  The store was changed from outside this topology meanwhile. End these changes, and run again."
    )
