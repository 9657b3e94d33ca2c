"""Clauses, which make a contract: each is a claim with a function that tries to refute the claim.

Clauses know neither pytest nor each other. So a test suite may run all at once, or make a test for
each clause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txtopo.testing.contracts import violation

S = TypeVar("S")
E = TypeVar("E", bound=BaseException)
Check = Callable[[S], None]


class BrokenClauseError(AssertionError):
    """A clause is broken. :meth:`Clause.run` makes a
    :class:`~txtopo.testing.contracts.violation.ContractError` with the clause's rule and cure."""


@dataclass(frozen=True)
class Clause(Generic[S]):
    """One promise. ``check(subject)`` returns if the subject keeps the promise. ``rules`` are rule
    numbers, the nearest first."""

    contract: str
    claim: str
    rules: tuple[int, ...]
    cure: str
    check: Check[S]
    only: str | None = None
    """The kind of subject that must keep the promise, ``None`` for every kind."""
    also: str | None = None
    """A further kind that must keep the promise."""

    def run(self, subject: S) -> None:
        """Check ``subject``.

        :raises ContractError: the clause is broken.
        """
        rule = self.rules[0] if self.rules else None
        try:
            self.check(subject)
        except BrokenClauseError as broken:
            raise violation.ContractError(
                self.contract, rule, f"{self.claim}: {broken}", self.cure
            ) from broken
        except Exception as error:
            violated = f"{self.claim}: it raised {type(error).__name__}: {error}"
            raise violation.ContractError(self.contract, rule, violated, self.cure) from error

    def __str__(self) -> str:
        return self.claim


class Contract(Generic[S]):
    """Collects clauses, in the order in which they are defined."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.clauses: list[Clause[S]] = []

    def clause(
        self, claim: str, *rules: int, cure: str, only: str | None = None, also: str | None = None
    ) -> Callable[[Check[S]], Check[S]]:

        def add(check: Check[S]) -> Check[S]:
            self.clauses.append(Clause(self._name, claim, rules, cure, check, only, also))
            return check

        return add


def equal(actual: Any, expected: Any, name: str) -> None:
    """``actual``, which ``name`` describes, must be ``expected``."""
    if actual != expected:
        raise BrokenClauseError(f"{name}: expected {expected!r}, found {actual!r}")


def true(condition: bool, violated: str) -> None:
    """``condition`` must hold. ``violated`` describes the violation."""
    if not condition:
        raise BrokenClauseError(violated)


def refused(kind: type[E], action: Callable[[], Any], attempted: str, *naming: str) -> E:
    """``action()`` must raise ``kind``, with a message that contains all ``naming``. Returns the
    error."""
    try:
        action()
    except kind as error:
        missing = [part for part in naming if part not in str(error)]
        if missing:
            raise BrokenClauseError(
                f"{attempted} is refused, but the message does not name {', '.join(map(repr, missing))}: {error}"
            ) from error
        return error
    except Exception as error:
        raise BrokenClauseError(
            f"{attempted} must be refused with {kind.__name__}, not with {type(error).__name__}: {error}"
        ) from error
    raise BrokenClauseError(f"{attempted} must be refused with {kind.__name__}, but was accepted")
