"""Looks after the records that a ``DeltaSink`` keeps beside its table, for people.

Runs on: the command line.
"""

from __future__ import annotations

from txtopo.connectors.delta import table
from txtopo.connectors.files import decisions, upkeep


class DeltaRecords(upkeep.FileRecords):
    """The decisions beside the Delta table ``root``. The rows are the table's."""

    keeps_rows = True

    def tell(self, generation: decisions.Generation, decided: decisions.Decision) -> None:
        table.Table(self.root, self.client).commit(self.log, generation, decided)
