"""The workloads, by name."""

from __future__ import annotations

from tests.soak.workloads.append import Append
from tests.soak.workloads.bank import Bank
from tests.soak.workloads.base import Workload
from tests.soak.workloads.opaque import Opaque
from tests.soak.workloads.words import Words

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Bank(),
        Append(),
        Opaque("opaque", planned=False),
        Opaque("planned-opaque", planned=True),
        Words(),
    )
}
"""Every workload there is."""

__all__ = ["WORKLOADS", "Workload"]
