"""Adopts or clears a store in Redis with any number of rows, and never keeps the server busy for
long.

The changes are computed from one state of the store. The store is then *held*, if its state is
still the same: the store refuses every other writer. Rows are changed in portions. The last step
changes the fences and releases the store. If this process dies in between, the store stays held
until the same command runs again, which finds fewer rows to change. Needs redis-py.

Invariants:
    - Rows and fences change only while this session holds the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.stores import failures, sessions, stamps
from txtopo.stores.redis import apply as applying
from txtopo.stores.redis import connection as connections
from txtopo.stores.redis import layout
from txtopo.stores.redis import reading as readings

PORTION_ROWS = 5_000
"""How many rows a step changes."""


class Maintenance(sessions.Maintenance):
    """Collects the changes for store ``name``. ``commit`` makes them."""

    def __init__(self, link: connections.Link, name: str, address: str, form: str) -> None:
        self._link, self._name, self._address, self._form = link, name, address, form
        self._names = layout.Names(name)
        reader = readings.Reader(link, name, address, form)
        self._exists = reader.exists
        self._state, pairs = reader.state()
        self._there = {key.decode(): row.decode() for key, row in pairs}
        self._rows = {key: layout.row_of(key, row) for key, row in self._there.items()}
        self._changed: set[str] = set()
        self._fences = {(fence.topology_id, fence.component): fence for fence in reader.fences()}
        self._new_fences: dict[tuple[str, str], stamps.Fence | None] = {}

    def restamp(self, topology_id: str, component: str, stamp: stamps.Stamp) -> int:
        chosen = self._of(topology_id, component)
        for row in chosen:
            renewed = dataclasses.replace(stamp, component=row.stamp.component, task=row.stamp.task)
            self._rows[row.key] = stamps.Row(
                row.key, renewed, prev=None, prev_txid=0, steps=[row.curr]
            )
            self._changed.add(row.key)
        return len(chosen)

    def remove(self, topology_id: str, component: str | None) -> tuple[int, int]:
        chosen = self._of(topology_id, component)
        for row in chosen:
            del self._rows[row.key]
            self._changed.add(row.key)
        fences = [
            owner
            for owner in self._fences
            if owner[0] == topology_id and component in (None, owner[1])
        ]
        for owner in fences:
            del self._fences[owner]
            self._new_fences[owner] = None
        return len(chosen), len(fences)

    def write_fence(self, fence: stamps.Fence) -> None:
        owner = (fence.topology_id, fence.component)
        self._fences[owner] = self._new_fences[owner] = fence

    def commit(self) -> None:
        """Make all changes.

        :raises errors.FailedException: a task has written to the store since it was read.
        """
        if not self._exists:
            self._make()
        born, _, version = self._state.partition(" ")
        held = self._link.run(
            layout.HOLD, [self._names.meta], [born, version, "maintained", self._form]
        ).decode()
        if not held:
            raise self._refusal("the store was written to while maintenance was reading it")
        changed = sorted(self._changed)
        for start in range(0, len(changed), PORTION_ROWS):
            self._change(born, held, changed[start : start + PORTION_ROWS])
        self._release(born, held)

    def _change(self, born: str, held: str, keys: Sequence[str]) -> None:
        names = self._names
        rows = {
            key: (
                self._there[key],
                "" if (row := self._rows.get(key)) is None else layout.row_text(row),
            )
            for key in keys
        }
        marks = {key: False for key in keys if key not in self._rows}
        change = applying.Change(born, held, self._form, rows=rows, marks=marks)
        places = [
            names.meta,
            names.fences,
            names.rows,
            names.order,
            names.deleted,
            names.written("", ""),
            names.counts("", ""),
        ]
        if self._link.run(applying.APPLY, places, change.arguments())[0] != b"done":
            raise self._refusal("another process adopts or clears the store, too")

    def _release(self, born: str, held: str) -> None:
        written = [
            key
            for owner in self._new_fences
            for key in (self._names.written(*owner), self._names.counts(*owner))
        ]
        arguments: list[Any] = [born, held]
        for owner, fence in self._new_fences.items():
            # Tenure 0: the fence is closed, so no attempt at this fence can be interrupted by a new
            # server process.
            arguments += (
                layout.fence_field(*owner),
                "" if fence is None else layout.fence_text(fence, 0),
            )
        if not self._link.run(
            layout.RELEASE, [self._names.meta, self._names.fences, *written], arguments
        ):
            raise self._refusal("another process adopts or clears the store, too")

    def _make(self) -> None:
        make(self._link, self._name, self._address, self._form)
        self._state = readings.Reader(self._link, self._name, self._address, self._form).state()[0]

    def _of(self, topology_id: str, component: str | None) -> list[stamps.Row]:
        return [
            row
            for row in self._rows.values()
            if row.stamp.topology_id == topology_id
            and (component is None or row.stamp.component == component)
        ]

    def _refusal(self, why: str) -> errors.FailedException:
        return failures.busy(self._address, f"{why}")


def make(link: connections.Link, name: str, address: str, form: str) -> None:
    """Make the store if it is missing. Several processes may do so at once."""
    names = layout.Names(name)
    places = [names.meta, names.fences, names.rows, names.order, names.deleted, names.served]
    if link.run(layout.MAKE, places, [layout.LAYOUT_VERSION, link.run_id, form]) == b"foreign":
        raise errors.SetupError(
            f"the server of {address} has keys of that name that are not a store of txtopo\n  Choose another name."
        )
