"""The error that every contract checker raises.

Not in ``txtopo.errors``, because a broken contract fails a test, not a run: the error is an
``AssertionError``.
"""

from __future__ import annotations


class ContractError(AssertionError):
    """An implementation breaks a contract.

    ``contract`` is ``"spout"``, ``"store"``, ``"sink"``, ``"bolt"``, ``"combiner"`` or
    ``"exporter"``. ``rule`` is the rule's number in the semantics, ``None`` for a promise without a
    rule. ``what`` names the hook or component and its fault, ``cure`` the remedy.
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
