"""The base class for stores: keyed results that each transaction changes exactly once, despite any
number of replays (R27-R32).

A store transaction is one database transaction. It first stands at its component's fence (R29),
then updates stamped values (R30), and commits. Before a store raises a fence, the store compares
the fence with the recorded attempts: whether the store is an older copy (R27), and whether the
fence's attempt counts at all (R31, see ``stamps``). ``fencing``, ``steps`` and ``stamps`` have the
rules, once. A backend implements ``sessions.Session`` and the reading methods in
``results.Results``, and knows no rule.

Runs on executors: standard library only. A store object is configuration and pickles. Connections
live in ``context.resource``.

Invariants:
    - Nothing is written to the database until the fence names this attempt.
    - If a refusal or a FailedException ends a block, the attempt fails, even if user code catches
      the exception.
    - ``context.store_steps`` and ``context.touched_stores`` change only after the database has
      committed.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from txtopo import errors, faults
from txtopo.stores import (
    begun,
    codecs,
    conflicts,
    direct,
    fencing,
    reserved,
    results,
    sessions,
    stamps,
    turns,
    visible,
)
from txtopo.stores import place as places
from txtopo.stores import rows as layout
from txtopo.stores import transaction as transactions
from txtopo.stores.steps import Steps
from txtopo.topology import context as contexts
from txtopo.topology import destination
from txtopo.topology import transaction as attempts
from txtopo.topology.kept import Kept, StoreChange

_UNDENIABLE = (errors.FailedException, errors.StateMismatchError, conflicts.StoreConflict)
"""Errors that fail the attempt as soon as they end a transaction."""

Resources = Callable[[str, Callable[[], Any]], Any]
"""``TopologyContext.resource``, or a substitute outside a topology."""


class Store(results.Results, destination.Destination):
    """A topology's keyed results. Give a store to a committer as an attribute. Read the store from
    anywhere."""

    _access: Mapping[str, Any] = {}
    """The settings for the store's database, as a place has them."""

    def __init__(
        self,
        name: str,
        address: str,
        opaque: bool,
        location: str | None = None,
        *,
        plain: bool = False,
        codec: codecs.Codec | None = None,
    ) -> None:
        if opaque and plain:
            raise errors.UsageError(
                f"store {address} is to be opaque and plain\n  A plain value cannot be taken back. Leave out opaque=True or plain=True."
            )
        self.name = name
        """The results' name in their database. The coordinator knows the store as
        ``component/name``, so a component's stores need different names."""
        self.address = address
        """The results' place, for messages: the same text in every process, and a different text
        for each store."""
        self.location = address.removesuffix(f"#{name}") if location is None else location
        """The results' place as the command line takes it, beside ``name``."""
        self.opaque = opaque
        """True if a replayed batch may hold different tuples (R30, R31). Needed with an opaque
        spout, allowed with any."""
        self.plain = plain
        """True if values keep nothing but the last write. Plain values are set and deleted, but
        neither updated nor taken back."""
        self.codec = codecs.checked(codec)
        """Turns values into the stored texts, and back."""

    @property
    def kind(self) -> stamps.Kind:
        """The values' kind."""
        return "plain" if self.plain else "opaque" if self.opaque else "transactional"

    @property
    def form(self) -> str:
        """The values' form, kept beside the results. Every process must open the store in the same
        form (see ``rows``). Transactional and opaque stores keep the same values, so a store may be
        opened as either."""
        return f"plain {self.codec.name}" if self.plain else self.codec.name

    @property
    def _place(self) -> places.Place:
        """This store as a value, for its database's modules."""
        return places.Place(
            self.name, self.address, self.location, self.form, self.opaque, **self._access
        )

    def guarantee(self) -> destination.Guarantee:
        """The store's guarantee, see :class:`~txtopo.topology.destination.Destination`."""
        return destination.Guarantee(
            f"{type(self).__name__} {self.address}",
            f"{self.kind} values",
            self.opaque,
            True,
            f"give the store opaque=True{' instead of plain=True' if self.plain else ''}",
            "the last write" if self.plain else "exactly once",
            place=self.address,
            known_as=self.name,
            form=layout.described(self.form),
        )

    def kept(self, topology_id: str, component: str) -> Kept:
        """The store itself."""
        return self

    def simulated(self, world: destination.World) -> destination.Destination | None:
        """A store in memory with the same rules. None for a user's class, which has its own code."""
        is_ours = type(self).__module__.partition(".")[0] == "txtopo"
        return world.store(self) if is_ours else None

    def command(self, action: str, topology_id: str) -> str:
        """The command line for ``action``, such as ``clear``."""
        return self._place.command(action, topology_id)

    def shown(self) -> list[dict[str, Any]]:
        """The fences, as JSON-able values."""
        return [dataclasses.asdict(fence) for fence in self.fences()]

    @contextlib.contextmanager
    def transaction(
        self, context: contexts.TopologyContext, attempt: attempts.TransactionAttempt
    ) -> Iterator[transactions.StoreTransaction]:
        """Opens a store transaction: committed when the block ends, rolled back when the block
        raises.

        Called: in ``finish_batch`` of a committer, or of a bolt downstream of a committer, any
        number of times in sequence. Open the transaction in every task, *even with nothing to
        write*: opening undoes a failed attempt's writes. If no task of the component opens the
        store, readers outside the topology keep seeing a failed attempt's writes until the
        component opens the store again. The failed attempt's writes never affect results.

        :raises errors.UsageError: not in the commit phase, inside another block of this store, or a
            store on this machine with executors on a cluster.
        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the store was emptied, restored from an older copy, or
            belongs to a different generation (R27). Or the store is newer than the state (R29).
        :raises errors.FailedException: the database is busy. The batch is replayed, even if user
            code catches the exception (R39).
        """
        self._check_may_write(context)
        stamp = stamps.Stamp.of(context, attempt)
        name = self._place.known_name(context.component_id)
        begun.check_room(name, self.address, context)
        with turns.take(context, name, self.address):
            opened: transactions.StoreTransaction | None = None
            number = context.touched_stores.get(name, 0) + 1
            opening = fencing.Opening(context, stamp, self._recorded(context), number)
            try:
                with self._fenced_session(opening) as session:
                    earlier = context.store_steps.get(self.address, {})
                    steps_of_task = Steps(
                        self.address,
                        self.kind,
                        self.codec,
                        stamp,
                        earlier,
                        opening.recorded,
                        session.read_fences,
                    )
                    beside = reserved.Reserved(
                        session,
                        steps_of_task,
                        self.address,
                        number,
                        context.opened_at,
                    )
                    opened = transactions.StoreTransaction(session, steps_of_task, beside)
                    try:
                        yield opened
                        steps = opened.finish()
                    finally:
                        opened.end()
            except BaseException as error:
                # User code may drop the exception, or raise a different one: the attempt has failed
                # nevertheless (R39).
                doom = None if opened is None else opened.doom
                for failure in (doom, None if error is doom else error):
                    if isinstance(failure, _UNDENIABLE):
                        context.on_failure(failure)
                raise
            faults.reach("apply.inside", attempt.txid, context.topology_id)
            context.store_steps[self.address] = {**earlier, **steps} if earlier else steps
            context.touched_stores[name] = context.touched_stores.get(name, 0) + int(
                session.is_counted
            )

    def direct(self) -> direct.Direct:
        """Open a connection to the rows outside any task's transaction, which an export queue needs.
        The store must exist before rows can be exchanged."""
        raise errors.UsageError(
            f"store {self.address} has no direct access to its rows, so it can hold no export queue\n"
            "  Use SqliteStore, SqlStore or RedisStore, or give your class the method direct()."
        )

    def adopt(
        self,
        topology_id: str,
        generation: str,
        txid: int,
        components: Iterable[str],
        *,
        from_topology: str | None = None,
        dry_run: bool = False,
    ) -> StoreChange:
        """Accept the store's contents as the results of transactions 1 to ``txid`` in this
        generation.

        The fences of ``components`` are set, or made if the store was emptied on purpose. The rows
        get new stamps, so that the next transaction applies on top. With ``from_topology``, rows
        and fences with that id become this topology's. Stop the topology first.
        """
        chosen = sorted(set(components))
        source = topology_id if from_topology is None else from_topology
        if dry_run and not self.exists():
            return StoreChange(rows=0, fences=len(chosen))

        rows = 0
        with self._maintenance(dry_run) as session:
            for component in chosen:
                stamp = stamps.Stamp(
                    topology_id, generation, component, 0, txid, stamps.UNKNOWN_ATTEMPT
                )
                rows += session.restamp(source, component, stamp)
                if source != topology_id:
                    session.remove(source, component)
                session.write_fence(
                    stamps.Fence(topology_id, component, generation, txid, stamps.CLOSED_ATTEMPT)
                )
        return StoreChange(rows, fences=len(chosen))

    def clear(
        self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> StoreChange:
        """Remove a topology's rows and fences, or only those of some components. Stop the topology
        first."""
        if not self.exists():
            return StoreChange(rows=0, fences=0)
        chosen = [None] if components is None else sorted(set(components))
        with self._maintenance(dry_run) as session:
            removed = [session.remove(topology_id, component) for component in chosen]
        return StoreChange(
            rows=sum(rows for rows, _ in removed), fences=sum(fences for _, fences in removed)
        )

    @abc.abstractmethod
    def exists(self) -> bool:
        """True if this store has been written or adopted. A missing store reads as empty."""

    @abc.abstractmethod
    def stored_form(self) -> str | None:
        """The stored values' form, even if this object has a different form. None if there is no
        store."""

    @abc.abstractmethod
    def _fenced_session(
        self, opening: fencing.Opening
    ) -> contextlib.AbstractContextManager[sessions.Session]:
        """A counted session (R34). While it is open, the fence names the attempt of ``opening``.

        The fence may be raised in an earlier database transaction, which is not counted.
        """

    @abc.abstractmethod
    def open_maintenance(
        self, resources: Resources
    ) -> contextlib.AbstractContextManager[sessions.Maintenance]:
        """Opens a database transaction for :meth:`adopt` and :meth:`clear`: committed on normal
        exit, rolled back when the block raises. ``resources`` keeps the connection."""

    def _check_may_write(self, context: contexts.TopologyContext) -> None:
        if context.phase != "commit":
            raise errors.UsageError(
                f"store {self.address}: component {context.component_id!r} opened a transaction in the {context.phase} phase\n"
                "  A store is written in the commit phase only. Make the bolt an ICommitter (or use set_committer_bolt) and open it in finish_batch."
            )
        if self.local_only_reason is not None and not context.local_master:
            raise errors.UsageError(
                f"store {self.address}: {self.local_only_reason}, but the executors are on other machines\n"
                "  Use a store that is a server, or run with a local master."
            )

    def _recorded(self, context: contexts.TopologyContext) -> stamps.Recorded | None:
        """This store's recorded attempts that the context knows, by component."""
        return visible.recorded_in(context, self.name)

    def _stand_at_fence(self, session: sessions.Session, opening: fencing.Opening) -> None:
        """Check that the fence names this attempt, or make or raise the fence, or refuse to write
        (R27, R29, R31). ``fencing`` decides."""
        context, stamp, recorded, _ = opening
        fence = session.read_fence(stamp.topology_id, stamp.component)
        decision = fencing.decide(self._place, self.kind, context, stamp, fence, recorded)
        if decision == "stand":
            return
        if fence is not None and decision == "take back":
            self._take_back(session, fence)
        session.write_fence(
            stamps.Fence(
                stamp.topology_id, stamp.component, stamp.generation, stamp.txid, stamp.attempt
            )
        )
        session.has_raised = True
        if fence is not None and fence.txid < stamp.txid:
            session.sweep(stamp)

    def _take_back(self, session: sessions.Session, void: stamps.Fence) -> None:
        """Undo the writes by the attempts in ``void``, in the transaction that raises the fence
        (R31). A subclass that writes more than values undoes those writes too."""
        session.take_back(void)

    @contextlib.contextmanager
    def _maintenance(self, dry_run: bool) -> Iterator[sessions.Maintenance]:
        """Opens a transaction that changes the store by hand. A dry run is rolled back at the end."""
        with contextlib.ExitStack() as stack, contextlib.suppress(_DryRun):
            try:
                with self.open_maintenance(
                    lambda name, factory: stack.enter_context(contextlib.closing(factory()))
                ) as session:
                    yield session
                    if dry_run:
                        raise _DryRun
            except errors.FailedException as error:
                raise errors.UsageError(
                    f"{error}\n  Stop the topology that writes the store, and try again."
                ) from error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}{'' if self.kind == 'transactional' else f' {self.kind}'}>"


class _DryRun(Exception):
    """Rolls a change back on purpose."""
