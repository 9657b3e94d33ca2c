"""Answers of ZooKeeper to a write: a conflict, or the refusal of a server."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo import exceptions

from txtopo import errors
from txtopo.state import base
from txtopo.state.zookeeper import ZooKeeperStateStore


def answering(*results: object) -> ZooKeeperStateStore:
    """A store whose ZooKeeper answers each write with ``results``."""
    transaction = SimpleNamespace(
        create=lambda *_, **__: None,
        commit_async=lambda: SimpleNamespace(get=lambda timeout: results),
    )
    store: Any = object.__new__(ZooKeeperStateStore)
    base.StateStore.__init__(store)
    store._prefix, store.address, store._closed, store._session_timeout_s = (
        "",
        "somewhere",
        False,
        1.0,
    )
    store._connected, store._dropped, store._login = threading.Event(), 0, None
    store._link = SimpleNamespace(acl=None, is_refused=False, has_ended=False)
    store._client = SimpleNamespace(transaction=lambda: transaction, connected=True)
    result: ZooKeeperStateStore = store
    return result


WRITE = [base.Create("/a"), base.Create("/b")]
CONFLICTS = {
    exceptions.NodeExistsError,
    exceptions.NoNodeError,
    exceptions.BadVersionError,
    exceptions.NotEmptyError,
}
CONFLICTS |= {exceptions.NoChildrenForEphemeralsError}
KNOWN = sorted(
    set(exceptions.EXCEPTIONS.values())
    - {exceptions.RolledBackError, exceptions.RuntimeInconsistency},
    key=str,
)


@pytest.mark.rule(25)
@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.__name__)
def test_only_an_answer_about_the_znode_itself_is_a_conflict(kind: type[Exception]) -> None:
    """Any other answer is a server that does not want to: nothing was changed by hand, and there is
    nothing to reset."""
    with pytest.raises(
        base.StateConflictError if kind in CONFLICTS else errors.ZooKeeperUnavailableError
    ) as caught:
        answering(exceptions.RolledBackError(), kind()).multi(WRITE)
    if kind not in CONFLICTS:
        assert caught.value.exit_code == 5
        assert "/b" in str(caught.value) or isinstance(caught.value, errors.ZooKeeperAccessError)
    if kind is exceptions.QuotaExceededError:
        assert "somewhere refused to create /b: QuotaExceededError\n  A quota is used up" in str(
            caught.value
        )
