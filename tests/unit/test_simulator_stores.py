"""The store in memory: a copy of SQLite's behaviour, without SQLite. Its contract is checked with
every other store's."""

from __future__ import annotations

import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.simulated import generated
from txtopo import TopologyContext, TransactionalTopologyBuilder, TransactionAttempt
from txtopo.errors import FailedException, UsageError
from txtopo.stores import SqliteStore, Store, StoreConflict
from txtopo.testing import MemoryStore, MemoryTransactionalSpout
from txtopo.testing.simulator.simulated_store import SimulatedStore
from txtopo.testing.simulator.substitutes import Substitutes
from txtopo.topology import pickling


def context(component: str = "count", task: int = 0, phase: Any = "commit") -> TopologyContext:
    return TopologyContext(
        "topology",
        "generation",
        component,
        task,
        {component: task + 1},
        phase,
        lambda name, factory: factory(),
    )


def added(more: int, old: int | None) -> int:
    return (old or 0) + more


def put(store: Store, txid: int, attempt: int, component: str = "count", **values: Any) -> None:
    with store.transaction(context(component), TransactionAttempt(txid, attempt)) as transaction:
        for key, value in values.items():
            transaction.update(key, partial(added, value))


@pytest.mark.in_gate("0-*", "1-*")
@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.rule(28, 29, 30, 31, 32)
def test_the_simulated_store_equals_sqlite_after_any_operations(
    tmp_path: Path, seed: int, opaque: bool
) -> None:
    stores: list[Store] = [
        SqliteStore(tmp_path / "results.db", "results", opaque=opaque),
        MemoryStore("results", str(tmp_path), opaque=opaque),
    ]
    rng = random.Random(seed)
    txid, attempt = 1, 0
    for _ in range(40):
        step = rng.random()
        txid, attempt = (
            (txid + 1, 0) if step < 0.4 else (txid, attempt + 1) if step < 0.8 else (txid, attempt)
        )
        component = rng.choice(("count", "sum"))
        late = TransactionAttempt(txid, max(0, attempt - rng.choice((0, 0, 1))))
        changes = [
            (rng.choice("abcd") + component, rng.choice((None, 1, 2, 5)))
            for _ in range(rng.randrange(4))
        ]
        fails = rng.random() < 0.2
        results = [applied(store, component, late, changes, fails) for store in stores]
        assert results[0] == results[1]
        assert list(stores[0].items()) == list(stores[1].items())
        assert [stores[0].inspect(key) for key in ("acount", "bsum")] == [
            stores[1].inspect(key) for key in ("acount", "bsum")
        ]
        assert stores[0].fences() == stores[1].fences()
        assert stores[0].exists() == stores[1].exists()
    assert stores[0].adopt("topology", "other", txid, ["sum"]) == stores[1].adopt(
        "topology", "other", txid, ["sum"]
    )
    assert stores[0].clear("topology", ["count"]) == stores[1].clear("topology", ["count"])
    assert list(stores[0].scan("a")) == list(stores[1].scan("a"))
    assert stores[0].fences() == stores[1].fences()


def applied(
    store: Store,
    component: str,
    attempt: TransactionAttempt,
    changes: list[tuple[str, int | None]],
    fails: bool,
) -> Any:
    """The result of a transaction, or the kind of its error."""
    try:
        with store.transaction(context(component), attempt) as transaction:
            updates = [
                transaction.delete(key)
                if more is None
                else transaction.update(key, partial(added, more))
                for key, more in changes
            ]
            if fails:
                raise FailedException
            return updates
    except (FailedException, StoreConflict) as error:
        return type(error)


def test_copies_find_the_same_results_and_forgetting_drops_them(tmp_path: Path) -> None:
    store = MemoryStore("results", str(tmp_path))
    put(store, 1, 0, dog=2)
    copy: MemoryStore = pickle.loads(pickle.dumps(store))
    assert (copy.get("dog"), copy.commits) == (2, 1)
    store.forget()
    assert (copy.get("dog"), copy.commits, copy.exists()) == (None, 0, False)


def test_a_second_transaction_in_one_task_is_refused_as_by_a_file(tmp_path: Path) -> None:
    store, other = MemoryStore("results", str(tmp_path)), MemoryStore("others", str(tmp_path))
    with store.transaction(context(), TransactionAttempt(1, 0)) as transaction:
        transaction.update("dog", lambda old: 1)
        with pytest.raises(UsageError, match="open already in this task"):
            put(other, 1, 0, cat=1)
    assert store.get("dog") == 1


def test_stores_are_found_wherever_in_a_component_they_are(tmp_path: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            self.nested = {
                "stores": [
                    SqliteStore(tmp_path / "a.db", "one"),
                    SqliteStore(tmp_path / "a.db", "two", opaque=True),
                ]
            }

    graph = generated(0)
    builder = TransactionalTopologyBuilder(
        "holding", "spout", MemoryTransactionalSpout({0: [(1,)]}, ["n"], 1)
    )
    bolt = pickling.loads(next(c.template for c in graph.components.values() if c.kind == "batch"))
    bolt.holder, bolt.again = Holder(), SqliteStore(tmp_path / "a.db", "one")
    builder.set_bolt("bolt", bolt).global_grouping("spout")
    substitutes = Substitutes(builder.build_topology(), has_reset=False)
    addresses = {store.address for store in substitutes.stores}
    held = pickling.loads(substitutes.graph.components["bolt"].template)
    substitutes.close()
    assert {f"{tmp_path}/a.db#one", f"{tmp_path}/a.db#two"} <= addresses
    one, two = held.holder.nested["stores"]
    assert (type(one), type(two), two.opaque, one.path) == (
        SimulatedStore,
        SimulatedStore,
        True,
        str(tmp_path / "a.db"),
    )
    assert held.again is one, "the same store is the same substitute"
    assert one.database == two.database, "tables of one file share their lock"
    assert not list(tmp_path.iterdir()), "nothing of the user's is touched"


class OwnStore(SqliteStore):
    """A store with code of the user's own."""


class ForeignStore(MemoryStore):
    """A backend the simulator knows nothing of."""


def storing(store: Store) -> Any:
    builder = TransactionalTopologyBuilder(
        "own", "spout", MemoryTransactionalSpout({0: [(1,)]}, ["n"], 1)
    )
    bolt = pickling.loads(
        next(c.template for c in generated(0).components.values() if c.kind == "batch")
    )
    bolt.store = store
    builder.set_bolt("bolt", bolt).global_grouping("spout")
    return builder.build_topology()


def test_a_class_of_the_users_keeps_its_code_on_another_file(tmp_path: Path) -> None:
    substitutes = Substitutes(storing(OwnStore(tmp_path / "own.db", "own")), has_reset=False)
    (store,) = [store for store in substitutes.stores if isinstance(store, OwnStore)]
    assert Path(store.path).parent != tmp_path
    put(store, 1, 0, dog=1)
    substitutes.empty()
    assert (store.get("dog"), (tmp_path / "own.db").exists()) == (None, False)
    directory = Path(store.path).parent
    substitutes.close()
    assert not directory.exists()


def test_an_unknown_backend_needs_a_reset() -> None:
    store = ForeignStore("results", "somewhere")
    with pytest.raises(
        UsageError,
        match=r"no substitute for the store somewhere#results, of class ForeignStore\n  Define reset",
    ):
        Substitutes(storing(store), has_reset=False)
    substitutes = Substitutes(storing(store), has_reset=True)
    assert any(kept is store or kept.address == store.address for kept in substitutes.stores)
    substitutes.close()
