"""What every store is: keyed results that each transaction changes exactly once, however often it is replayed (R27-R32).

A store transaction is one transaction of the database behind it. It first stands at the fence of its component (R29), then
updates stamped values (R30), and commits. Before it raises a fence it asks what is known of recorded attempts: whether the store is the
one it was (R27), and whether the attempt that raised the fence counts at all (R31, see ``stamps``). The rules are here, in
``transaction`` and in ``stamps``, once; a backend implements ``transaction.Session`` and the readings of :class:`Store`, and knows no rule.

Apart from ``connectors``: a connector writes where nothing can be read back, a store remembers who wrote what. Runs on executors, so it
imports the standard library only. A store object is configuration and pickles; connections live in ``context.resource``.

Invariants:
    - Nothing is written to the database before the fence was found to be, or raised to, this attempt's.
    - ``context.store_steps`` and ``context.touched_stores`` change only after the database has committed.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from txtopo import errors, faults
from txtopo.stores import keys, stamps
from txtopo.stores import transaction as transactions
from txtopo.topology import context as contexts
from txtopo.topology import transaction as attempts

Resources = Callable[[str, Callable[[], Any]], Any]
"""``TopologyContext.resource``, or what stands in for it outside a topology."""

StoreConflict = transactions.StoreConflict
Update = transactions.Update


@dataclasses.dataclass(frozen=True, slots=True)
class StoredValue:
    """A value with its stamp, for people who look into a store (:meth:`Store.inspect`)."""

    curr: Any
    prev: Any
    txid: int
    attempt: int
    component: str
    task: int
    topology_id: str
    generation: str


@dataclasses.dataclass(frozen=True, slots=True)
class StoreChange:
    """How much :meth:`Store.adopt` or :meth:`Store.clear` changed, or would change."""

    rows: int
    fences: int


class Store(abc.ABC):
    """Keyed results of a topology. Give it to a committer as an attribute; read it from anywhere."""

    local_only_reason: str | None = None
    """Why every executor must be on the driver's machine, or None if they need not be."""

    def __init__(self, name: str, address: str, opaque: bool, location: str | None = None) -> None:
        self.name = name
        """What the results are called in their database; known to the coordinator as ``component/name``, so that the stores of one
        component need different names."""
        self.address = address
        """Where the results are, for messages; the same in every process, different for every store."""
        self.location = address.removesuffix(f"#{name}") if location is None else location
        """What says on the command line where the results are, beside ``name``."""
        self.opaque = opaque
        """True if a replayed batch may hold other tuples (R30, R31); needed with an opaque spout, allowed with any."""

    @contextlib.contextmanager
    def transaction(self, context: contexts.TopologyContext, attempt: attempts.TransactionAttempt) -> Iterator[transactions.StoreTransaction]:
        """One transaction of the store: committed when the block ends, rolled back when it raises.

        Called: in ``finish_batch`` of a committer, or of what is downstream of one; as often as you like. Open it *also when the batch gave
        you nothing to write*, and in every task: that is how a store learns that an earlier attempt's writes are void. If no task of the
        component does, readers outside see them until one does in a later transaction; what is computed from them never counts.

        :raises errors.UsageError: not in the commit phase, or a store of this machine on a cluster.
        :raises errors.StaleAttemptError: a newer attempt has written (R29).
        :raises errors.StateMismatchError: the store was emptied, restored from an older copy, or belongs to another generation (R27); or it
            is newer than the state (R29).
        :raises errors.FailedException: the database is busy; the batch is replayed.
        """
        self._check_may_write(context)
        mine = stamps.Stamp(context.topology_id, context.generation, context.component_id, context.task_index, attempt.txid, attempt.attempt_id)
        recorded = self._recorded(context)
        with self._fenced_session(context, mine, recorded) as session:
            opened = transactions.StoreTransaction(self.address, self.opaque, session, mine, context.store_steps, recorded)
            try:
                yield opened
                steps = opened.finish()
            finally:
                opened.end()
        faults.reach("apply.inside", attempt.txid, context.topology_id)
        context.store_steps.update(steps)
        context.touched_stores.add(self._known_name(context.component_id))

    def get(self, key: keys.Key) -> Any:
        """The committed value of ``key``, None if there is none."""
        row = self._read_row(keys.encode_key(key))
        return None if row is None else keys.decode_value(row.curr)

    def inspect(self, key: keys.Key) -> StoredValue | None:
        """The committed value of ``key`` with its stamp, None if there is no such row; a deleted key may still have one."""
        row = self._read_row(keys.encode_key(key))
        if row is None:
            return None
        curr, prev, stamp = keys.decode_value(row.curr), keys.decode_value(row.prev), row.stamp
        return StoredValue(curr, prev, stamp.txid, stamp.attempt, stamp.component, stamp.task, stamp.topology_id, stamp.generation)

    def items(self) -> Iterator[tuple[keys.Key, Any]]:
        """Every committed ``(key, value)``, ordered by the key's text: one consistent state of the store, read as you go."""
        return self._pairs(self._read_from(""))

    def scan(self, prefix: str | tuple[keys.Key | None, ...]) -> Iterator[tuple[keys.Key, Any]]:
        """Like :meth:`items`, only the ``str`` keys that begin with ``prefix``, or the tuples whose first elements it is."""
        itself, beginning = keys.prefix_texts(prefix)
        row = None if itself is None else self._read_row(itself)
        return self._pairs(itertools.chain([] if row is None else [row], (other for other in self._read_prefix(beginning) if other.key != itself)))

    @abc.abstractmethod
    def fences(self) -> list[stamps.Fence]:
        """Every fence of this store, ordered by topology and component."""

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
        """Accept what the store holds as the result of transactions 1 to ``txid`` of this generation, whatever wrote it.

        For ``components``: fences are set (made, if the store was emptied on purpose) and rows are stamped anew, so that the next
        transaction applies on top. With ``from_topology``, rows and fences of that id become this topology's. Stop the topology first.
        """
        chosen = sorted(set(components))
        source = topology_id if from_topology is None else from_topology
        if dry_run and not self.exists():
            return StoreChange(rows=0, fences=len(chosen))

        def change(session: transactions.Session) -> StoreChange:
            rows = 0
            for component in chosen:
                rows += session.restamp(source, component, stamps.Stamp(topology_id, generation, component, 0, txid, stamps.UNKNOWN_ATTEMPT))
                if source != topology_id:
                    session.remove(source, component)
                session.write_fence(stamps.Fence(topology_id, component, generation, txid, stamps.CLOSED_ATTEMPT))
            return StoreChange(rows, fences=len(chosen))

        return self._maintain(change, dry_run)

    def clear(self, topology_id: str, components: Iterable[str] | None = None, *, dry_run: bool = False) -> StoreChange:
        """Remove the rows and fences of a topology, or of some of its components. Stop the topology first."""
        if not self.exists():
            return StoreChange(rows=0, fences=0)
        chosen: list[str | None] = [None] if components is None else [*sorted(set(components))]

        def change(session: transactions.Session) -> StoreChange:
            removed = [session.remove(topology_id, component) for component in chosen]
            return StoreChange(rows=sum(rows for rows, _ in removed), fences=sum(fences for _, fences in removed))

        return self._maintain(change, dry_run)

    @abc.abstractmethod
    def exists(self) -> bool:
        """True if this store has been written to, or adopted; reading one that has not finds it empty."""

    @contextlib.contextmanager
    def _fenced_session(
        self, context: contexts.TopologyContext, mine: stamps.Stamp, recorded: stamps.Recorded | None
    ) -> Iterator[transactions.Session]:
        """A session that stands at the fence of ``mine``, and of nobody else until it ends.

        A backend whose tasks write side by side may raise the fence in a database transaction of its own before this one.
        """
        with self._session(context.resource) as session:
            self._stand_at_fence(session, context, mine, recorded)
            yield session

    @abc.abstractmethod
    def _session(self, resources: Resources) -> contextlib.AbstractContextManager[transactions.Session]:
        """A database transaction, made with a connection kept in ``resources``: committed on normal exit, else rolled back."""

    @abc.abstractmethod
    def _read_row(self, text: str) -> stamps.Row | None:
        """One committed row."""

    @abc.abstractmethod
    def _read_from(self, text: str) -> Generator[stamps.Row, None, None]:
        """The committed rows whose key's text is not below ``text``, ordered by code points."""

    def _read_prefix(self, beginning: str) -> Iterable[stamps.Row]:
        """The committed rows whose key's text begins with ``beginning``, in the same order."""
        return itertools.takewhile(lambda row: row.key.startswith(beginning), self._read_from(beginning))

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
        """What the context knows of this store, by component."""
        if context.known_stores is None:
            return None
        split = ((name.rpartition("/"), attempt) for name, attempt in context.known_stores.items())
        return {component: attempt for (component, _, name), attempt in split if name == self.name}

    def _stand_at_fence(
        self, session: transactions.Session, context: contexts.TopologyContext, mine: stamps.Stamp, recorded: stamps.Recorded | None
    ) -> None:
        """Find the fence to be this attempt's, or make or raise it, or refuse to write (R27, R29, R31)."""
        fence = session.read_fence(mine.topology_id, mine.component)
        last = None if recorded is None else recorded.get(mine.component)
        where = stamps.fence_standing(fence, mine, recorded)
        if where == "equal":
            return
        if fence is None:
            if last is not None or self._known_name(mine.component) in context.touched_stores:
                raise _emptied(self, mine)
        elif where == "other generation":
            raise _other_generation(self, fence, mine)
        elif where == "above":
            raise errors.StaleAttemptError(self.address, mine.component, fence.position, mine.position)
        elif last is not None and where == "behind":
            raise _behind(self, fence, last)
        elif last is not None and where == "unexplained":
            raise _unexplained(self, fence, last)
        elif where == "void" or (where == "replayed" and self.opaque):
            session.take_back(fence)
        session.write_fence(stamps.Fence(mine.topology_id, mine.component, mine.generation, mine.txid, mine.attempt))
        if fence is not None and fence.txid < mine.txid:
            session.sweep(mine)

    def _known_name(self, component: str) -> str:
        return f"{component}/{self.name}"

    def _pairs(self, rows: Iterable[stamps.Row]) -> Iterator[tuple[keys.Key, Any]]:
        return ((keys.decode_key(row.key), keys.decode_value(row.curr)) for row in rows if row.curr is not None)

    def _maintain(self, change: Callable[[transactions.Session], StoreChange], dry_run: bool) -> StoreChange:
        result = StoreChange(rows=0, fences=0)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(_DryRun))
            try:
                with self._session(lambda name, factory: stack.enter_context(contextlib.closing(factory()))) as session:
                    result = change(session)
                    if dry_run:
                        raise _DryRun
            except errors.FailedException as error:
                raise errors.UsageError(f"{error}\n  Stop the topology that writes it, and try again.") from error
        return result

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}{' opaque' if self.opaque else ''}>"


class _DryRun(Exception):
    """Rolls a change back on purpose."""


def _command(store: Store, action: str, topology_id: str) -> str:
    return f"txtopo store {action} {shlex.quote(store.location)} {store.name} --topology {shlex.quote(topology_id)}"


def _emptied(store: Store, mine: stamps.Stamp) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"store {store.address} holds nothing of component {mine.component!r}, which wrote its results there before transaction {mine.txid}\n"
        "  It was emptied, or it is another store. Restore it, or choose:\n"
        f"    `{_command(store, 'adopt', mine.topology_id)}`: go on from what it holds now; the results of earlier transactions are lost\n"
        f"    `txtopo state reset {mine.topology_id}`: forget what was committed and begin with the first batch"
    )


def _behind(store: Store, fence: stamps.Fence, last: attempts.TransactionAttempt) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"store {store.address} is behind: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        "  It was restored from an older copy, or the component has two stores of this name. Nothing was written. Look with\n"
        "  `txtopo state show`, restore the newest copy, or choose:\n"
        f"    `{_command(store, 'adopt', fence.topology_id)}`: go on from what it holds now; what came after it is lost\n"
        f"    `txtopo state reset {fence.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    )


def _unexplained(store: Store, fence: stamps.Fence, last: attempts.TransactionAttempt) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"store {store.address} is ahead: component {fence.component!r} is at attempt {fence.position} there, but ZooKeeper has recorded {last}\n"
        "  ZooKeeper was restored from an older copy. Nothing was written. Look with `txtopo state show`, restore the newest copy, or choose:\n"
        f"    `{_command(store, 'adopt', fence.topology_id)}`: go on from what the store holds\n"
        f"    `txtopo state reset {fence.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    )


def _other_generation(store: Store, fence: stamps.Fence, mine: stamps.Stamp) -> errors.StateMismatchError:
    return errors.StateMismatchError(
        f"store {store.address} belongs to generation {fence.generation} of topology {mine.topology_id!r} (component {mine.component!r}, "
        f"transaction {fence.txid}), but ZooKeeper is at generation {mine.generation}, transaction {mine.txid}\n"
        "  Nothing was written. Look with `txtopo state show`, then choose:\n"
        f"    `{_command(store, 'adopt', mine.topology_id)}`: go on from what the store holds\n"
        f"    `{_command(store, 'clear', mine.topology_id)}`: empty the store, for a state that begins with the first batch\n"
        f"    `txtopo state reset {mine.topology_id}`: begin with the first batch; the store must then be cleared or adopted"
    )
