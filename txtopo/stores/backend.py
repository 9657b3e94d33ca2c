"""The classes that your own store implements: :class:`Backend`, :class:`Session` and
:class:`Maintenance`. Server stores (SQL, Redis) inherit ``base.Store`` instead, because they raise
fences by themselves.

Runs on executors: standard library only.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator

from txtopo.stores import base, fencing, sessions
from txtopo.stores.base import Resources
from txtopo.stores.rows import check_form
from txtopo.stores.sessions import Maintenance, RowsChangedError, Session
from txtopo.stores.stamps import UNKNOWN_ATTEMPT, Fence, Row, Stamp


class Backend(base.Store):
    """A store in a database whose transactions hold the fence from reading it until the commit.

    A subclass implements seven methods: :meth:`open_session` and :meth:`open_maintenance` to write,
    ``read_row`` and ``read_from`` to read, ``fences``, ``exists`` and ``stored_form``. A store
    object is pickled: connections belong into ``resources``. ``txtopo.testing.check_store`` tells
    whether a backend keeps a store's promises.
    """

    @abc.abstractmethod
    def open_session(self, resources: Resources) -> contextlib.AbstractContextManager[Session]:
        """Opens a task's database transaction: committed on normal exit, rolled back when the block
        raises.

        Runs on: executors. Called: once for each ``Store.transaction``. While the transaction is
        open, no other transaction may raise the component's fence: wait, or raise
        ``FailedException``. ``resources(name, make)`` returns the object that an earlier call made
        under ``name`` in the same worker process, or calls ``make``. When the process ends, the
        object's ``close()`` is called.
        """

    @contextlib.contextmanager
    def _fenced_session(self, opening: fencing.Opening) -> Iterator[sessions.Session]:
        context = opening.context
        with self.open_session(context.resource) as session:
            session.is_alone = context.num_tasks == 1
            self._stand_at_fence(session, opening)
            session.count(opening.stamp, opening.number)
            yield session


__all__ = [
    "UNKNOWN_ATTEMPT",
    "Backend",
    "Fence",
    "Maintenance",
    "Resources",
    "Row",
    "RowsChangedError",
    "Session",
    "Stamp",
    "check_form",
]
