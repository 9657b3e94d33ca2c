"""Lets one coordinator per topology id write (R26), to one incarnation of the state (R27).

Two znodes have two jobs. ``epoch`` is the *fence*: it grows each time the lease is taken. Every
write checks the epoch in the same multi, so a coordinator that lost the topology without noticing
can change nothing. ``lease`` is ephemeral and only names the coordinator that is *alive*: because
of the lease, a second coordinator is refused instead of taking over.

Invariants:
- ``epoch`` and ``holder_id`` never change after :meth:`Lease.take`. If the stored values differ,
  this coordinator has lost the topology for ever.
- Every method may be called again after :class:`~txtopo.state.base.StateUnavailableError`: each
  method begins by reading the stored state.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txtopo import errors
from txtopo.state import base, layout, liveness, records

TRIES_MAX = 20
"""How often a refused multi is tried again after reading the new state. Only an interfering client
causes a refusal."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A coordinator as a person knows it. ``started`` is text, as ISO 8601 with time zone. ``name``
    is the run's name.

    ``process`` is the text from :func:`txtopo.state.liveness.process_identity`. If empty, only
    ZooKeeper can tell when the coordinator dies.
    """

    host: str
    pid: int
    started: str
    name: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended: the fields of :class:`records.EndedRecord` that the lease does not know."""

    at: str
    exit_code: int | None = None
    error: str | None = None
    data_dir: str | None = None
    committed: int = 0
    failed: int = 0
    behind: int = 0


class Lease:
    """The right of ``holder`` to write one topology's state.

    With ``displaces`` an existing lease does not count: its holder is known to be dead, or is to be
    fenced. ``new_id()`` gives unique ids: one for this coordinator, and one for the generation if
    the topology is new. ``first_nodes(epoch record)`` are a new topology's znodes beside
    generation, epoch and lease.
    """

    def __init__(
        self,
        store: base.StateStore,
        paths: layout.Layout,
        holder: Holder,
        displaces: bool,
        new_id: Callable[[], str],
        first_nodes: Callable[[records.EpochRecord], Sequence[base.Create]],
    ) -> None:
        self._store, self._paths, self._holder, self._displaces = store, paths, holder, displaces
        self._first_nodes = first_nodes
        self.holder_id = new_id()
        """A name that no other coordinator has."""
        self._new_generation = new_id()
        self.generation = ""
        """Id of this incarnation. Empty until the lease is taken."""
        self.epoch = 0
        """How often the lease has been taken, this time included. 0 until then."""
        self._epoch_version = 0
        self._session = 0
        self.taken_from: records.LeaseRecord | None = None
        """Whose lease :meth:`take` has replaced, if it can be read."""

    def take(self) -> None:
        """Take the topology: raise the epoch, and make the lease in the same multi. Makes every
        znode if the topology is new.

        :raises HeldError: a live coordinator holds the topology.
        :raises UnreadableStateError: a stored record cannot be understood.
        """
        for _ in range(TRIES_MAX):
            generation = self._store.get(self._paths.generation)
            session = self._store.session
            try:
                if generation is None:
                    if not self._take_new():
                        continue
                elif self._take_existing(
                    records.GenerationRecord.decode(
                        self._paths.generation, generation.data
                    ).generation
                ):
                    # An earlier try was applied after all, in an unknown session: the next renewal
                    # makes the lease anew.
                    session = 0
            except base.StateConflictError:
                continue
            self._session = session
            return
        raise errors.FencedError(
            f"topology {self._paths.topology_id!r} is being opened by other coordinators all the time\n  Run one coordinator per topology id."
        )

    def _take_new(self) -> bool:
        """Make and take the topology. False if another coordinator has made the topology since the
        last look."""
        paths = self._paths
        leftovers = self._store.children(paths.top)
        if leftovers and self._store.get(paths.generation) is not None:
            return False
        if leftovers:
            raise errors.UnreadableStateError(
                paths.generation, f"it is missing, although there are {', '.join(leftovers)}"
            )
        epoch = records.EpochRecord(epoch=1, holder_id=self.holder_id)
        self._store.multi(
            [
                *([] if self._store.get(paths.top) else [base.Create(paths.top)]),
                base.Create(
                    paths.generation,
                    records.GenerationRecord(generation=self._new_generation).encode(),
                ),
                base.Create(paths.marker(self._new_generation)),
                base.Create(paths.epoch, epoch.encode()),
                *self._first_nodes(epoch),
                self._create_lease(epoch.epoch),
            ]
        )
        self.generation, self.epoch, self._epoch_version = self._new_generation, epoch.epoch, 0
        return True

    def _take_existing(self, generation: str) -> bool:
        """Take the topology. True if an earlier try with an unknown outcome had taken it already."""
        paths = self._paths
        node = self._store.get(paths.epoch)
        if node is None:
            raise errors.UnreadableStateError(
                paths.epoch, "it is missing, although the topology has a generation"
            )
        last = records.EpochRecord.decode(paths.epoch, node.data)
        if last.holder_id == self.holder_id:
            self.generation, self.epoch, self._epoch_version = generation, last.epoch, node.version
            return True
        lease = self._store.get(paths.lease)
        if lease is not None and not self._displaces:
            holder = records.LeaseRecord.decode(paths.lease, lease.data)
            if not liveness.has_certainly_died(holder.process):
                raise held_by(paths.topology_id, holder)
        if lease is not None:
            with contextlib.suppress(errors.UnreadableStateError):
                self.taken_from = records.LeaseRecord.decode(paths.lease, lease.data)
        epoch = records.EpochRecord(epoch=last.epoch + 1, holder_id=self.holder_id)
        self._store.multi(
            [
                base.Check(paths.marker(generation), 0),
                base.Set(paths.epoch, epoch.encode(), version=node.version),
                *([] if lease is None else [base.Delete(paths.lease)]),
                self._create_lease(epoch.epoch),
            ]
        )
        self.generation, self.epoch, self._epoch_version = generation, epoch.epoch, node.version + 1
        return False

    def checks(self) -> list[base.Operation]:
        """The first operations in every multi: the multi is refused unless generation, epoch and
        lease are as this holder left them."""
        paths = self._paths
        return [
            base.Check(paths.marker(self.generation), 0),
            base.Check(paths.epoch, self._epoch_version),
            base.Check(paths.lease, 0),
        ]

    @property
    def is_in_doubt(self) -> bool:
        """Whether the lease's session has ended, and the lease with it. False without a connection."""
        return self._store.session not in (0, self._session)

    def reclaim(self) -> None:
        """Take the lease again after its session has expired, if the epoch is still ours.

        :raises FencedError: another coordinator has, or has had, the topology.
        """
        paths = self._paths
        for _ in range(TRIES_MAX):
            session = self._store.session
            self.require_epoch()
            node = self._store.get(paths.lease)
            if node is not None and session == self._session:
                return
            # An existing lease is ours, from the expired session: another coordinator would have
            # raised the epoch.
            release = [] if node is None else [base.Delete(paths.lease)]
            try:
                self._store.multi([*self.checks()[:2], *release, self._create_lease(self.epoch)])
            except base.StateConflictError:
                continue
            self._session = session
            return
        raise self._error("its lease comes and goes")

    def require_epoch(self) -> None:
        """Check that the topology is still ours. A fenced coordinator need not know until it asks
        or writes.

        :raises FencedError: the topology is not ours any more.
        """
        marker = self._store.get(self._paths.marker(self.generation))
        node = self._store.get(self._paths.epoch)
        if marker is None or node is None:
            raise self._error("its state was reset")
        stored = records.EpochRecord.decode(self._paths.epoch, node.data)
        if stored.holder_id != self.holder_id:
            lease = self._store.get(self._paths.lease)
            by = (
                f", now held by {describe(records.LeaseRecord.decode(self._paths.lease, lease.data))}"
                if lease
                else ""
            )
            raise self._error(f"another coordinator took the topology in epoch {stored.epoch}{by}")
        if node.version != self._epoch_version:
            raise self._error("its epoch was written by hand")

    def lost(self) -> errors.FencedError:
        """The error for a write that another coordinator overtook. Names that coordinator if
        possible."""
        try:
            self.require_epoch()
        except errors.FencedError as error:
            return error
        return self._error("another process wrote its state")

    def _error(self, why: str) -> errors.FencedError:
        return errors.FencedError(
            f"topology {self._paths.topology_id!r} is no longer ours (epoch {self.epoch}): {why}\n"
            f"  This coordinator writes no more. Run one coordinator per topology id: the latest goes on from here."
        )

    def release(self, end: End | None = None) -> None:
        """Give the lease back if it is ours, and keep how the run ended. The epoch stays. A
        coordinator that has lost the topology changes nothing."""
        ended = [] if end is None else [self._set_ended(end)]
        try:
            self._store.multi([*self.checks(), *ended, base.Delete(self._paths.lease)])
        except base.StateConflictError:
            if not ended:
                raise
            # The session has expired, and the lease with it. The epoch is still ours, or refuses.
            self._store.multi([*self.checks()[:2], *ended])

    def _set_ended(self, end: End) -> base.Operation:
        path, holder = self._paths.ended, self._holder
        data = records.EndedRecord(
            epoch=self.epoch,
            host=holder.host,
            pid=holder.pid,
            name=holder.name,
            **dataclasses.asdict(end),
        ).encode()
        return base.Create(path, data) if self._store.get(path) is None else base.Set(path, data)

    def _create_lease(self, epoch: int) -> base.Create:
        record = records.LeaseRecord(
            **dataclasses.asdict(self._holder), epoch=epoch, holder_id=self.holder_id
        )
        return base.Create(self._paths.lease, record.encode(), ephemeral=True)


def describe(lease: records.LeaseRecord) -> str:
    """Name the holder of ``lease``, for a message."""
    name = f"{lease.name!r}, " if lease.name else ""
    return (
        f"{name}pid {lease.pid} on host {lease.host}, started {lease.started} (epoch {lease.epoch})"
    )


def held_by(topology_id: str, lease: records.LeaseRecord) -> errors.HeldError:
    """The error for a topology that a live coordinator holds."""
    return errors.HeldError(
        f"topology {topology_id!r} is held by another coordinator: {describe(lease)}\n"
        f"  Stop that coordinator first, or wait for its end with --standby (on_held=wait), or fence it with --takeover (on_held=take).\n"
        f"  If that coordinator has just died on another machine, its lease ends within seconds, with its ZooKeeper session."
    )


def live_holder(store: base.StateStore, paths: layout.Layout) -> records.LeaseRecord | None:
    """The topology's holder, as far as can be known. None without a holder, or if the holder has
    certainly died. One round trip.

    :raises UnreadableStateError: the lease cannot be understood.
    """
    lease = records.LeaseRecord.find(store, paths.lease)
    return None if lease is None or liveness.has_certainly_died(lease.process) else lease
