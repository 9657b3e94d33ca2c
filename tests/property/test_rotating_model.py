"""Under any operations: deferred and immediate agree with each other, with a model, and with the
final content of the store."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from txtopo.state.memory import MemoryStateStore
from txtopo.state.rotating import RotatingTransactionalState, StrictOrderError

TXIDS = st.integers(1, 12)
VALUES = st.none() | st.integers() | st.text(max_size=30) | st.lists(st.integers(), max_size=3)


class _Rotating(RuleBasedStateMachine):
    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.stores = [MemoryStateStore(), MemoryStateStore()]
        for store in self.stores:
            store.ensure("/s")
        self.immediate = self._made(0)
        self.deferred = self._made(1)
        self.model: dict[int, Any] = {}

    def _made(self, index: int) -> RotatingTransactionalState[Any]:
        return RotatingTransactionalState(
            self.stores[index], "/s", strict_order=self.strict, deferred=index == 1
        )

    @property
    def both(self) -> list[RotatingTransactionalState[Any]]:
        return [self.immediate, self.deferred]

    def _expected(self, txid: int, value: Any) -> tuple[str, Any, list[Any]]:
        """The answer to a request for ``txid`` by Storm's rules: kind, value, and the arguments for
        ``init``."""
        if txid in self.model:
            return "found", self.model[txid], []
        below = [other for other in self.model if other < txid]
        is_below_another = any(other > txid for other in self.model)
        if self.strict and (is_below_another or (txid != 1 and txid - 1 not in self.model)):
            return "refused", None, []
        if is_below_another:
            return "made", None, []
        return "made", value, [(txid, self.model[max(below)] if below else None)]

    @rule(txid=TXIDS, value=VALUES, or_create=st.booleans())
    def get(self, txid: int, value: Any, or_create: bool) -> None:
        kind, result, calls = self._expected(txid, value)
        for state in self.both:
            called: list[Any] = []

            def init(txid: int, last: Any, called: list[Any] = called) -> Any:
                called.append((txid, last))
                return value

            call = state.get_state_or_create if or_create else state.get_state
            if kind == "refused":
                with pytest.raises(StrictOrderError):
                    call(txid, init)
            else:
                assert call(txid, init) == (None if or_create and kind == "made" else result)
            assert called == calls
        if kind == "made":
            self.model[txid] = result

    @rule(txid=TXIDS, value=VALUES)
    def override(self, txid: int, value: Any) -> None:
        for state in self.both:
            state.override_state(txid, value)
        self.model[txid] = value

    @rule(txid=TXIDS)
    def remove(self, txid: int) -> None:
        for state in self.both:
            state.remove_state(txid)
        self.model.pop(txid, None)

    @rule(txid=TXIDS)
    def clean(self, txid: int) -> None:
        for state in self.both:
            state.cleanup_before(txid)
        self.model = {other: value for other, value in self.model.items() if other >= txid}

    @rule(bytes_max=st.none() | st.integers(0, 600), required=st.sets(TXIDS, max_size=3))
    def take(self, bytes_max: int | None, required: set[int]) -> None:
        operations = self.deferred.take_operations(bytes_max, required)
        assert len({operation.path for operation in operations}) == len(operations)
        assert not self.deferred.pending & required
        if operations:
            self.stores[1].multi(operations)

    @precondition(lambda self: not self.deferred.pending)
    @rule()
    def restart(self) -> None:
        self.immediate, self.deferred = self._made(0), self._made(1)

    @invariant()
    def all_agree(self) -> None:
        for state in self.both:
            assert {txid: state.find(txid) for txid in state.txids()} == self.model
            assert state.get_last_state() == (self.model[max(self.model)] if self.model else None)
        assert self.immediate.pending == frozenset()

    def teardown(self) -> None:
        operations = self.deferred.take_operations()
        if operations:
            self.stores[1].multi(operations)
        held = [
            {name: node.data for name in store.children("/s") if (node := store.get(f"/s/{name}"))}
            for store in self.stores
        ]
        assert held[0] == held[1]


class _StrictRotating(_Rotating):
    strict = True


SETTINGS = examples(75, stateful_step_count=30)


@pytest.mark.rule(24)
def test_without_strict_order_deferred_and_immediate_and_model_agree() -> None:
    run_state_machine_as_test(_Rotating, settings=SETTINGS)


@pytest.mark.rule(24)
def test_in_strict_order_deferred_and_immediate_and_model_agree() -> None:
    run_state_machine_as_test(_StrictRotating, settings=SETTINGS)
