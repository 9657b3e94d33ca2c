"""The contract for a user's aggregate: the same result however its tuples are cut into tasks and
batches."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from txtopo import errors
from txtopo.testing.contracts import equality
from txtopo.testing.contracts.violation import ContractError
from txtopo.topology import aggregator
from txtopo.topology.stream import Tuple, TupleSource, with_attempt
from txtopo.topology.transaction import TransactionAttempt


def check_combiner(
    combiner: aggregator.CombinerAggregator, rows: Sequence[Sequence[Any]], *, fields: Sequence[str]
) -> int:
    """Combine the values of ``rows``, tuples of one key with ``fields``: cut at every place into
    two parts, in either order, and dealt to two tasks. Returns how many divisions were compared.
    Floats may differ in their last digits.

    :raises ContractError: a value is None or not finite, a result depends on the cut, or
        ``combine`` changes its arguments.
    """
    if not rows:
        raise errors.UsageError("check_combiner has no rows\n  Give some tuples of one key.")
    source = TupleSource("rows", 0, "default", with_attempt(fields))
    name = type(combiner).__name__

    def broken(fact: str, cure: str) -> ContractError:
        return ContractError("combiner", None, f"{name}{fact}", cure)

    def checked(value: Any, tup: Tuple | None, fact: str) -> Any:
        try:
            return aggregator.checked(combiner, value, tup)
        except aggregator.ValueRefusedError:
            raise broken(
                fact,
                "Let neither None nor NaN nor an infinity be a value: return a finite value, or drop the tuples before.",
            ) from None

    def combine(left: Any, right: Any) -> Any:
        value = combiner.combine(left, right)
        return checked(value, None, f".combine makes {value!r} of {left!r} and {right!r}")

    tuples = [Tuple((TransactionAttempt(1, 0), *row), source) for row in rows]
    values = [
        checked(value := combiner.init(tup), tup, f".init makes {value!r} of {tup.values[1:]!r}")
        for tup in tuples
    ]
    whole = functools.reduce(combine, copy.deepcopy(values))
    cuts = [(values[:cut], values[cut:]) for cut in range(1, len(values))]
    divisions = [
        *cuts,
        *(part[::-1] for part in cuts),
        *([(values[::2], values[1::2])] if cuts else []),
    ]
    for division in divisions:
        parts = [functools.reduce(combine, copy.deepcopy(some)) for some in division]
        before = copy.deepcopy(parts)
        result = combine(*parts)
        if not _is_same(parts, before):
            raise broken(
                f".combine changed {before!r} to {parts!r}",
                "Make a new value: the old value may be combined once more.",
            )
        if not _is_same(result, whole):
            fact = f".combine makes {whole!r} of all tuples one by one, and {result!r} of {division[0]!r} and {division[1]!r}"
            raise broken(
                fact,
                "Let combine be associative, in any order. Instead of a mean keep a sum and a count.",
            )
    return len(divisions)


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return bool(left.keys() == right.keys()) and all(
            _is_same(value, right[key]) for key, value in left.items()
        )
    return bool(equality.identity(left) == equality.identity(right))
