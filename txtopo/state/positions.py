"""Keeps metadata by partition, from the last committed transaction, in a fixed number of znodes
(R25).

A txid record holds only the partitions that moved. So resting partitions cost nothing, however many
there are. A partition continues where it stopped, after any rest. Partition p is in shard
``p % 16``.

Invariants:
- ``_shards`` equals the store: changes are computed, written, and only then applied.
- Metadata is kept encoded, each partition by itself: only moved partitions are encoded again, and
  no caller can change a stored value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txtopo import errors, plain_json
from txtopo.state import base, records

SHARDS = 16


class Positions:
    """The positions under the znode ``path``."""

    def __init__(self, store: base.StateStore, path: str) -> None:
        """Load the positions.

        :raises UnreadableStateError: a shard cannot be understood.
        """
        self._path = path
        self._shards: dict[int, dict[int, bytes]] = {}
        for name in store.children(path):
            shard_path = f"{path}/{name}"
            if name not in map(str, range(SHARDS)):
                raise errors.UnreadableStateError(
                    shard_path, f"its name is not a shard, 0 to {SHARDS - 1}"
                )
            node = store.get(shard_path)
            if node is None:
                raise errors.UnreadableStateError(shard_path, "it was removed by hand")
            self._shards[int(name)] = _decode(shard_path, int(name), node.data)

    def all(self) -> dict[int, Any]:
        """Metadata by partition, ascending."""
        encoded = {
            partition: data for shard in self._shards.values() for partition, data in shard.items()
        }
        return {
            partition: records.decode_json(self._path, encoded[partition])
            for partition in sorted(encoded)
        }

    def operations(self, moved: Mapping[int, Any]) -> list[base.Operation]:
        """Operations that give the partitions in ``moved`` their new metadata.

        :raises NotJsonError: JSON would not give the metadata back unchanged.
        """
        operations: list[base.Operation] = []
        for shard, partitions in self._merge(moved).items():
            data = _encode(partitions)
            path = f"{self._path}/{shard}"
            operations.append(
                base.Set(path, data) if shard in self._shards else base.Create(path, data)
            )
        return operations

    def apply(self, moved: Mapping[int, Any]) -> None:
        """Note that the operations from :meth:`operations` have been written."""
        self._shards = {**self._shards, **self._merge(moved)}

    def _merge(self, moved: Mapping[int, Any]) -> dict[int, dict[int, bytes]]:
        merged: dict[int, dict[int, bytes]] = {}
        for partition in sorted(moved):
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise ValueError(f"{partition!r} is not a partition: partitions are 0, 1, 2 …")
            shard = partition % SHARDS
            if shard not in merged:
                merged[shard] = dict(self._shards.get(shard, {}))
            merged[shard][partition] = plain_json.encode(moved[partition])
        return merged


def _encode(partitions: Mapping[int, bytes]) -> bytes:
    """A :class:`~txtopo.state.records.PositionsRecord`, put together from encoded parts."""
    return b'{"version":1,"positions":{%s}}' % b",".join(
        b'"%d":%s' % (partition, partitions[partition]) for partition in sorted(partitions)
    )


def _decode(path: str, shard: int, data: bytes) -> dict[int, bytes]:
    positions: dict[int, bytes] = {}
    for name, metadata in records.PositionsRecord.decode(path, data).positions.items():
        if not (
            name.isascii()
            and name.isdigit()
            and str(int(name)) == name
            and int(name) % SHARDS == shard
        ):
            raise errors.UnreadableStateError(path, f"{name!r} is not a partition of shard {shard}")
        positions[int(name)] = plain_json.encode(metadata)
    return positions
