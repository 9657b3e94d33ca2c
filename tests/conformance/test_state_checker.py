"""``check_state`` finds every way to be wrong: for each clause there is a store of znodes that
breaks it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import pytest

from tests.conformance import state_contract as contract
from tests.conformance.state_contract import check_state
from txtopo.state import base, memory
from txtopo.state.base import Create, Node, Operation, Set, StateConflictError, StateStore
from txtopo.testing import ContractError


class Unversioned(memory.MemoryStateStore):
    def get(self, path: str) -> Node | None:
        node = super().get(path)
        return None if node is None else Node(node.data, 0)


class Strict(memory.MemoryStateStore):
    """Takes absence for an error."""

    def children(self, path: str) -> list[str]:
        if super().get(path) is None:
            raise KeyError(path)
        return super().children(path)


class Once(memory.MemoryStateStore):
    """Answers once for each node that there is."""

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [node for node in super().get_many(list(dict.fromkeys(paths))) if node is not None]


class Paths(memory.MemoryStateStore):
    """Answers with paths."""

    def children(self, path: str) -> list[str]:
        return [f"{path}/{name}" for name in super().children(path)]


class OneByOne(memory.MemoryStateStore):
    """Applies as many operations of a multi as it can."""

    def multi(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            super().multi([operation])


class Blind(memory.MemoryStateStore):
    """Judges all operations of a multi by the state before the multi."""

    def multi(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if not isinstance(operation, Create) and self.get(operation.path) is None:
                raise StateConflictError(operation, "missing")
        super().multi(operations)


class Lasting(memory.MemoryStateStore):
    """Keeps ephemeral nodes."""

    def multi(self, operations: Sequence[Operation]) -> None:
        super().multi(
            [
                dataclasses.replace(o, ephemeral=False)
                if isinstance(o, Create) and o.path != "/b"
                else o
                for o in operations
            ]
        )


class SameSession(memory.MemoryStateStore):
    """Calls its new session by the old one's name."""

    def expire_session(self) -> None:
        before = self._session
        super().expire_session()
        self._session = before


class ByPath(memory.MemoryStateStore):
    """With its session, removes every node it has ever made as ephemeral."""

    def __init__(self, server: memory.MemoryServer) -> None:
        super().__init__(server)
        self.made: list[str] = []

    def multi(self, operations: Sequence[Operation]) -> None:
        super().multi(operations)
        self.made.extend(o.path for o in operations if isinstance(o, Create) and o.ephemeral)

    def close(self) -> None:
        for path in self.made if not self._closed else []:
            with contextlib.suppress(StateConflictError):
                self.server.apply([base.Delete(path)], self._session)
        super().close()


class Inquiring(memory.MemoryStateStore):
    """Looks at the first node before it writes."""

    def multi(self, operations: Sequence[Operation]) -> None:
        self.get(operations[0].path)
        super().multi(operations)


class Emptying(memory.MemoryStateStore):
    """Makes what exists anew."""

    def ensure(self, path: str) -> None:
        super().ensure(path)
        if path != "/":
            self.multi([Set("/a", b"")])


class Impatient(memory.MemoryStateStore):
    """Does not try again when another session was faster."""

    def ensure(self, path: str) -> None:
        self.multi(
            [
                Create(path[:end] or "/")
                for end in [*(i for i, c in enumerate(path) if c == "/" and i), len(path)]
            ]
        )


class AnyPath(memory.MemoryStateStore):
    def get(self, path: str) -> Node | None:
        return self.server.get(path)


class Undead(memory.MemoryStateStore):
    """Answers after it was closed."""

    def close(self) -> None:
        self.server.end_session(self._session)


class Narrow(memory.MemoryStateStore):
    def get(self, path: str) -> Node | None:
        node = super().get(path)
        return None if node is None else Node(node.data[:4096], node.version)


FOUND_BY: dict[str, Callable[[memory.MemoryServer], StateStore]] = {
    "what was created is read, and its version counts the sets": Unversioned,
    "an absent node is None and has no children": Strict,
    "several nodes come back as they were asked for": Once,
    "children are names, sorted, and only of the next level": Paths,
    "a multi may build on its own operations": Blind,
    "a refused multi names the operation and changes nothing": OneByOne,
    "an ephemeral node goes when its session is closed": Lasting,
    "an ephemeral node goes when its session expires, and the client goes on with a new one": SameSession,
    "a node made again by another session survives the end of the first": ByPath,
    "every call costs one round trip": Inquiring,
    "ensure makes parents, and leaves what is there": Emptying,
    "sessions that ensure the same path at once do not disturb each other": Impatient,
    "a path that ZooKeeper would refuse is refused": AnyPath,
    "a closed session answers nothing, at once": Undead,
    "large data comes back whole": Narrow,
}
"""By claim: the implementation that breaks it."""


def expire(store: StateStore) -> None:
    assert isinstance(store, memory.MemoryStateStore)
    store.expire_session()


@pytest.mark.rule(25, 26)
@pytest.mark.parametrize("clause", contract.STATE_CLAUSES, ids=str)
def test_a_store_that_breaks_a_clause_is_found(
    clause: contract.StateClause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "PATIENCE_S", 0.2)
    server = memory.MemoryServer()
    with pytest.raises(ContractError) as caught:
        contract.check_clause(
            clause, lambda place: FOUND_BY[clause.claim](server), expire=expire, place="wrong"
        )
    error = caught.value
    assert (error.contract, error.rule, error.cure) == (
        "state",
        clause.rules[0] if clause.rules else None,
        clause.cure,
    )
    assert error.what.startswith(f"{clause.claim}: ")


def test_every_clause_has_a_store_that_breaks_the_clause() -> None:
    assert set(FOUND_BY) == {clause.claim for clause in contract.STATE_CLAUSES}


def test_the_whole_check_stops_at_the_first_clause_that_is_broken() -> None:
    servers: dict[str, memory.MemoryServer] = {}
    with pytest.raises(
        ContractError, match=r"^state contract, R25: a refused multi names the operation"
    ):
        check_state(lambda place: OneByOne(servers.setdefault(place, memory.MemoryServer())))
