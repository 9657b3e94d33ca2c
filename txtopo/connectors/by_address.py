"""Opens a store's or sink's records by address, as the command line gives it, without a topology.

Addresses with ``kafka://`` are a Kafka sink's. Directories, and the addresses of HDFS and object
stores, are a Delta sink's if there is a table, or a file sink's. ``stores.by_address`` opens all
others.
"""

from __future__ import annotations

from txtopo.connectors.delta.table import DeltaRecords
from txtopo.connectors.files import upkeep as files
from txtopo.connectors.kafka import auxiliary, upkeep
from txtopo.stores import by_address
from txtopo.topology.kept import Kept

EXAMPLES = (
    *by_address.EXAMPLES,
    f"{auxiliary.SCHEME}://host:port,host:port",
    "/directory/of/files",
    "s3://bucket/folder",
)


def open_kept(address: str, name: str, topology_id: str | None, must_exist: bool = True) -> Kept:
    """Open the records ``name`` at ``address``: a store as ``stores.by_address.open_store`` opens
    it, or a Kafka sink's auxiliary topics.

    :raises errors.UsageError: the store ``must_exist`` and does not, its server does not answer, or
        a sink's records are asked for without a topology.
    """
    if address.startswith(f"{auxiliary.SCHEME}://"):
        return upkeep.open_topics(address, name, topology_id)
    if files.takes(address):
        records = files.open_records(address, name)
        return DeltaRecords(records.root, name, records.client) if records.is_table else records
    return by_address.open_store(address, name, must_exist)
