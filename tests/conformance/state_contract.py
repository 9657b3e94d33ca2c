"""The contract of stores of znodes: what is read is what was written, a multi is all or nothing,
and ephemeral nodes go with their session."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tests.patience import PATIENCE_S
from tests.servers.state_backends import RoundTrips
from txtopo import errors
from txtopo.state import base
from txtopo.state.base import (
    Check,
    Create,
    Delete,
    Node,
    Operation,
    Set,
    StateConflictError,
    StateStore,
)
from txtopo.testing.contracts import clauses
from txtopo.testing.contracts.clauses import equal, refused, true

_LOOK_AGAIN_S = 0.005
_SESSIONS_AT_ONCE = 4
_BAD_PATHS = ("", "a", "/a/", "//a", "/a/../b", "/./a", "/a\0")
_MULTI = "Check every operation in order, and apply all of them or none."
_SESSION = "Remove what a session made as ephemeral when that session ends, and only then."


class MakeStateStore(Protocol):
    """Opens a session with the store of znodes at ``place``: empty if the place is new, otherwise
    shared with its other sessions."""

    def __call__(self, place: str) -> StateStore: ...


Expire = Callable[[StateStore], None]
"""Ends the session of a store as its server does after too long a silence; returns when the client
has another."""


class Subject:
    """An implementation, for one clause: sessions with an empty store, closed when the clause is
    over."""

    def __init__(self, make_store: MakeStateStore, expire: Expire | None, place: str) -> None:
        self._make_store, self._place, self.expire = make_store, place, expire
        self._sessions: list[StateStore] = []

    def connect(self) -> StateStore:
        """A new session."""
        self._sessions.append(self._make_store(self._place))
        return self._sessions[-1]

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.close()


CONTRACT = clauses.Contract[Subject]("state")


def _eventually(condition: Callable[[], bool], expected: str) -> None:
    deadline, tick = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        true(time.monotonic() < deadline, f"{expected}: not within {PATIENCE_S:g} s")
        tick.wait(_LOOK_AGAIN_S)


@CONTRACT.clause(
    "what was created is read, and its version counts the sets",
    25,
    cure="A version is 0 when a node is created and grows by one with every Set.",
)
def _versions(subject: Subject) -> None:
    store = subject.connect()
    store.multi([Create("/a", b"one")])
    equal(store.get("/a"), Node(b"one", 0), "the node that was created")
    store.multi([Set("/a", b"two"), Set("/a", b"", version=1)])
    equal(store.get("/a"), Node(b"", 2), "the node after two sets")


@CONTRACT.clause(
    "an absent node is None and has no children", 25, cure="Absence is an answer, not an error."
)
def _absent(subject: Subject) -> None:
    store = subject.connect()
    equal(
        (store.get("/absent"), store.children("/absent"), store.children("/")),
        (None, [], []),
        "get and children of nothing",
    )


@CONTRACT.clause(
    "several nodes come back as they were asked for", 25, cure="Answer in the order of the paths."
)
def _several(subject: Subject) -> None:
    store = subject.connect()
    store.multi([Create("/a", b"one"), Create("/b", b"two")])
    equal(
        store.get_many(["/b", "/absent", "/a", "/b"]),
        [Node(b"two", 0), None, Node(b"one", 0), Node(b"two", 0)],
        "four nodes, one of which is absent",
    )


@CONTRACT.clause(
    "children are names, sorted, and only of the next level", 25, cure="Return names, not paths."
)
def _children(subject: Subject) -> None:
    store = subject.connect()
    store.multi([Create("/a"), Create("/a/c"), Create("/a/b"), Create("/a/b/d"), Create("/ab")])
    equal(
        (store.children("/a"), store.children("/")),
        (["b", "c"], ["a", "ab"]),
        "the children of /a and of /",
    )


@CONTRACT.clause("a multi may build on its own operations", 25, cure=_MULTI)
def _building(subject: Subject) -> None:
    store = subject.connect()
    store.multi(
        [
            Create("/a"),
            Create("/a/b", b"x"),
            Set("/a/b", b"y", version=0),
            Delete("/a/b", version=1),
            Create("/a/b", b"z"),
            Check("/a/b", 0),
        ]
    )
    equal(store.get("/a/b"), Node(b"z", 0), "the node in the end")


_REFUSED: list[tuple[list[Operation], int, base.ConflictReason]] = [
    ([Create("/a/x")], 0, "exists"),
    ([Create("/absent/x")], 0, "missing"),
    ([Set("/absent", b"")], 0, "missing"),
    ([Set("/a", b"", version=7)], 0, "version"),
    ([Delete("/absent")], 0, "missing"),
    ([Delete("/a/x", version=3)], 0, "version"),
    ([Delete("/a")], 0, "not empty"),
    ([Check("/absent", 0)], 0, "missing"),
    ([Check("/a", 1)], 0, "version"),
    ([Create("/b", ephemeral=True), Create("/b/c")], 1, "ephemeral parent"),
    (
        [Set("/a", b"changed"), Delete("/a/x"), Create("/new"), Check("/a", 0), Delete("/a")],
        3,
        "version",
    ),
]


@CONTRACT.clause("a refused multi names the operation and changes nothing", 25, cure=_MULTI)
def _refused(subject: Subject) -> None:
    store = subject.connect()
    store.multi([Create("/a", b"a"), Create("/a/x", b"x")])
    for operations, culprit, reason in _REFUSED:
        multi = functools.partial(store.multi, operations)
        conflict = refused(StateConflictError, multi, f"{operations}", operations[culprit].path)
        equal(
            (conflict.operation, conflict.reason),
            (operations[culprit], reason),
            f"operation and reason when {operations} is refused",
        )
        equal(
            (store.children("/"), store.children("/a")),
            (["a"], ["x"]),
            f"the nodes after {operations} was refused",
        )
        equal(
            (store.get("/a"), store.get("/a/x")),
            (Node(b"a", 0), Node(b"x", 0)),
            f"their data after {operations} was refused",
        )


@CONTRACT.clause("an ephemeral node goes when its session is closed", 26, cure=_SESSION)
def _closed_session(subject: Subject) -> None:
    store, other = subject.connect(), subject.connect()
    other.multi([Create("/gone", ephemeral=True), Create("/stays")])
    other.close()
    _eventually(lambda: store.get("/gone") is None, "the ephemeral node goes")
    true(store.get("/stays") is not None, "the other node has gone, too")


@CONTRACT.clause(
    "an ephemeral node goes when its session expires, and the client goes on with a new one",
    26,
    cure=_SESSION,
    only="expiring",
)
def _expired_session(subject: Subject) -> None:
    store = subject.connect()
    assert subject.expire is not None
    store.multi([Create("/gone", ephemeral=True), Create("/stays")])
    before = store.session
    subject.expire(store)
    _eventually(
        lambda: store.wait_until_connected(1) and store.get("/gone") is None,
        "the ephemeral node goes",
    )
    true(store.session not in (0, before), f"the session is still {store.session}")
    store.multi([Create("/gone", ephemeral=True)])
    true(store.get("/stays") is not None, "the other node has gone, too")


@CONTRACT.clause(
    "a node made again by another session survives the end of the first", 26, cure=_SESSION
)
def _made_again(subject: Subject) -> None:
    store, other = subject.connect(), subject.connect()
    other.multi([Create("/lease", b"theirs", ephemeral=True)])
    store.multi([Delete("/lease"), Create("/lease", b"ours", ephemeral=True)])
    other.close()
    equal(store.get("/lease"), Node(b"ours", 0), "the node that was made again")


@CONTRACT.clause(
    "every call costs one round trip",
    25,
    cure="Send one request for each call, also if it is refused.",
)
def _round_trips(subject: Subject) -> None:
    store = subject.connect()
    trips = RoundTrips(store)
    store.multi([Create("/a"), Create("/b"), Create("/c")])
    store.get("/a")
    store.children("/")
    refused(StateConflictError, lambda: store.multi([Create("/a")]), "creating /a again")
    equal(trips.count, 4, "the round trips of four calls")


@CONTRACT.clause(
    "ensure makes parents, and leaves what is there", cure="Inherit ensure from StateStore."
)
def _ensure(subject: Subject) -> None:
    store = subject.connect()
    store.multi([Create("/a", b"kept")])
    for _ in range(2):
        store.ensure("/a/b/c")
        store.ensure("/")
    equal(
        (store.get("/a"), store.get("/a/b/c")),
        (Node(b"kept", 0), Node(b"", 0)),
        "the nodes /a and /a/b/c",
    )


@CONTRACT.clause(
    "sessions that ensure the same path at once do not disturb each other", 26, cure=_MULTI
)
def _ensure_at_once(subject: Subject) -> None:
    stores = [subject.connect() for _ in range(_SESSIONS_AT_ONCE)]
    barrier, failures = threading.Barrier(len(stores)), list[BaseException]()

    def ensure(store: StateStore) -> None:
        try:
            barrier.wait(PATIENCE_S)
            store.ensure("/deep/er/still")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ensure, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    equal(failures, [], "what the sessions raised")
    true(stores[0].get("/deep/er/still") is not None, "the path is not there")


@CONTRACT.clause(
    "a path that ZooKeeper would refuse is refused", cure="Use check_path of txtopo.state.base."
)
def _paths(subject: Subject) -> None:
    store = subject.connect()
    for path in _BAD_PATHS:
        get, children = functools.partial(store.get, path), functools.partial(store.children, path)
        for call in (get, children, functools.partial(store.multi, [Create(path)])):
            refused(ValueError, call, f"the path {path!r}", "znode path")


@CONTRACT.clause(
    "a closed session answers nothing, at once",
    26,
    cure="Remember that it was closed; close() may be called again.",
)
def _closed(subject: Subject) -> None:
    store = subject.connect()
    store.close()
    store.close()
    equal(store.session, 0, "the id of a closed session")
    refused(errors.ZooKeeperUnavailableError, lambda: store.get("/"), "reading from it", "closed")
    refused(
        errors.ZooKeeperUnavailableError,
        lambda: store.multi([Create("/a")]),
        "writing to it",
        "closed",
    )


@CONTRACT.clause("large data comes back whole", 25, cure="Keep up to 512 KiB in a node.")
def _large(subject: Subject) -> None:
    store, data = subject.connect(), bytes(range(256)) * 2048
    store.multi([Create("/a", data)])
    true(store.get("/a") == Node(data, 0), "512 KiB do not come back as they were")
    true(base.size_of([Create("/a", data)]) >= len(data), "size_of says less than there is")


StateClause = clauses.Clause[Subject]
STATE_CLAUSES: tuple[StateClause, ...] = tuple(CONTRACT.clauses)
"""Every promise of a store of znodes; ``only="expiring"`` where a session has to expire on request.
"""


def check_state(
    make_store: MakeStateStore, *, expire: Expire | None = None, prefix: str = "contract"
) -> int:
    """Run a store of znodes through its whole contract; returns how many clauses were checked.

    ``make_store(place)`` opens a session with the store at ``place``: empty the first time,
    afterwards shared with the other sessions there. Places begin with ``prefix`` and are made of
    letters, digits and ``_``. ``expire(store)`` ends the session of ``store`` as the server does
    after too long a silence, and returns when the client has a new session. Without ``expire``
    the clause about expired sessions is not checked.

    :raises ContractError: the first clause that is broken, with the number of its rule.
    """
    chosen = [clause for clause in STATE_CLAUSES if clause.only is None or expire is not None]
    for number, clause in enumerate(chosen):
        check_clause(clause, make_store, expire=expire, place=f"{prefix}_{number}")
    return len(chosen)


def check_clause(
    clause: StateClause, make_store: MakeStateStore, *, expire: Expire | None, place: str
) -> None:
    """Check one clause, for suites that make a test of each."""
    subject = Subject(make_store, expire, place)
    try:
        clause.run(subject)
    finally:
        subject.close()
