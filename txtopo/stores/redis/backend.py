"""Begins transactions, readings and maintenance in Redis, over the connections that a worker
process keeps.

A cluster needs no special client: a store's keys are all in one hash slot, and so on one node. If a
node does not have the store, it names the node that has. From then on, the store is looked for
there. Needs redis-py.

Invariants:
    - Only the process that opened a connection uses the connection. Threads take turns for each
      exchange, not for a transaction.
    - A process has one connection to a server, or to each cluster node that has a store in use.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from txtopo import errors
from txtopo.stores import failures, rows, stamps
from txtopo.stores import place as places
from txtopo.stores.redis import connection as connections
from txtopo.stores.redis import errors as faults
from txtopo.stores.redis import layout, maintenance
from txtopo.stores.redis import reading as readings
from txtopo.stores.redis import session as sessions

REDIRECTS_MAX = 5
"""How often a cluster may name a different node during one operation."""

FenceMovedError = sessions.FenceMovedError
T = TypeVar("T")


class Connection:
    """A process's connections to a server or cluster, kept across transactions."""

    def __init__(self) -> None:
        self._links: dict[connections.Node | None, connections.Link] = {}
        self._homes: dict[str, connections.Node] = {}
        """By store: its node, if not the node in the URL."""
        self._acknowledged: dict[str, sessions.Acknowledged] = {}
        """By store."""
        self._turn = threading.Lock()

    def open(self, store: places.Place, stamp: stamps.Stamp, accept_loss: bool) -> sessions.Session:
        """Begin a transaction for the task in ``stamp``, and read the fence. Makes a missing
        store."""

        def begin(link: connections.Link) -> sessions.Session:
            link.check_may_be_written(accept_loss)
            names = layout.Names(store.name)
            field = layout.fence_field(stamp.topology_id, stamp.component)
            keys = [
                names.meta,
                names.fences,
                names.served,
                names.deleted,
                names.rows,
                names.counts(stamp.topology_id, stamp.component),
            ]
            # Read before the server answers: other threads go on, and their acknowledgements may be
            # newer than the answer.
            known = self._acknowledged.get(store.name)
            for _ in range(2):
                owner = [
                    layout.LAYOUT_VERSION,
                    link.run_id,
                    field,
                    known.tenure if known else 0,
                    store.form,
                    stamp.task,
                ]
                answer = link.run(layout.OPEN, keys, owner)
                if answer:
                    break
                maintenance.make(link, store.name, store.address, store.form)
            else:
                raise errors.FailedException(
                    f"the store {store.address} was removed just after it was made"
                )
            readings.check_layout(store.address, store.name, answer[0])
            opened = sessions.Opened._make(
                part.decode() if isinstance(part, bytes) else part for part in answer[1:]
            )
            rows.check_form(store.address, opened.form, store.form)
            return sessions.Session(store, link, stamp, opened, known, self._acknowledge)

        return self._on_owning_node(store, begin)

    @contextlib.contextmanager
    def maintenance(
        self, store: places.Place, accept_loss: bool
    ) -> Iterator[maintenance.Maintenance]:
        """Open maintenance. The changes are made when the block ends, and not made when the block
        raises."""

        def begin(link: connections.Link) -> maintenance.Maintenance:
            link.check_may_be_written(accept_loss)
            return maintenance.Maintenance(link, store.name, store.address, store.form)

        session = self._on_owning_node(store, begin)
        yield session
        session.commit()

    def read(self, store: places.Place, function: Callable[[readings.Reader], T]) -> T:
        """Call ``function`` with a reader at the store's node."""
        return self._on_owning_node(
            store,
            lambda link: function(readings.Reader(link, store.name, store.address, store.form)),
        )

    def close(self) -> None:
        """Close the connections. The next transaction opens them again."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _acknowledge(self, store: str, news: sessions.Acknowledged) -> None:
        with self._turn:
            known = self._acknowledged.get(store)
            if (
                known is None
                or known.born != news.born
                or (known.tenure, known.version) < (news.tenure, news.version)
            ):
                self._acknowledged[store] = news

    def _on_owning_node(self, store: places.Place, act: Callable[[connections.Link], T]) -> T:
        for _ in range(REDIRECTS_MAX):
            try:
                return act(self._link(store))
            except errors.FailedException as error:
                node = faults.moved_to(error)
                if node is None:
                    # After a fail-over the node may be gone. The node in the URL knows the new
                    # node.
                    self._homes.pop(store.name, None)
                    raise
                self._homes[store.name] = node
        raise failures.busy(
            store.address, f"the cluster has named a different node {REDIRECTS_MAX} times"
        )

    def _link(self, store: places.Place) -> connections.Link:
        node = self._homes.get(store.name)
        with self._turn:
            link = self._links.get(node)
            if link is not None and link.has_news:
                link.close()
                link = None
            if link is None:
                link = self._links[node] = connections.Link(store, node)
            return link
