"""The error every contract checker raises.

Apart from ``txtopo.errors`` because it is no fault of a run: it is the answer of a test, and
therefore an ``AssertionError``.
"""

from __future__ import annotations


class ContractError(AssertionError):
    """An implementation breaks a contract.

    ``contract`` is ``"spout"``, ``"store"``, ``"bolt"`` or ``"combiner"``, ``rule`` the number of
    the rule in the semantics, ``None`` for a promise without a rule. ``what`` names the hook or
    component and its fault, ``cure`` the remedy.
    """

    def __init__(self, contract: str, rule: int | None, what: str, cure: str) -> None:
        super().__init__(contract, rule, what, cure)
        self.contract, self.rule, self.what, self.cure = contract, rule, what, cure

    def __str__(self) -> str:
        where = (
            f"{self.contract} contract"
            if self.rule is None
            else f"{self.contract} contract, R{self.rule}"
        )
        return f"{where}: {self.what}\n  {self.cure}"
