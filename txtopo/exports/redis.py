"""Tells a queue's entries to a Redis server.

Runs where redis-py is installed, and is configuration elsewhere. Each key is a hash::

    <prefix><key>    value (JSON, missing if deleted), sequence, generation, deleted (0 or 1)

Invariants:
    - The script makes all its checks before its first change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from txtopo import errors
from txtopo.exports import linked
from txtopo.exports.entries import EntryRefusedError, SequencedExport
from txtopo.stores import place as places
from txtopo.stores.redis import layout
from txtopo.stores.redis import store as redis_store

# A sequence has more digits than Lua's numbers. Without leading zeros, a longer text is higher.
TELL = layout.script("""
local kept = {}
for i, key in ipairs(KEYS) do
  local row = redis.pcall('HMGET', key, 'generation', 'sequence')
  if row.err or row[1] ~= ARGV[1] and (row[1] or redis.call('EXISTS', key) == 1) then return {i, row[1] or ''} end
  kept[key] = row[2] or ''
end
for i, key in ipairs(KEYS) do
  local sequence, value = ARGV[2 * i], ARGV[2 * i + 1]
  if #kept[key] < #sequence or (#kept[key] == #sequence and kept[key] < sequence) then
    kept[key] = sequence
    redis.call('HSET', key, 'sequence', sequence, 'generation', ARGV[1], 'deleted', value == '' and 1 or 0, 'value', value)
    if value == '' then redis.call('HDEL', key, 'value') end
  end
end
return {}
""")
"""Keys: those of the entries. Arguments: generation, then two per key: sequence, and value (empty:
gone). Returns ``[]``, or the number and the generation (empty: none) of a key that does not fit."""

_LIMITS = {"connect_timeout_s": 10.0, "answer_timeout_s": 60.0}


class RedisExporter(linked.LinkedExporter):
    """Keeps the current value of each key in the Redis server at ``url``, in a hash with the fields
    ``value`` (JSON), ``sequence``, ``generation`` and ``deleted``.

    A hash is named by ``prefix`` and the key: a ``str`` as it is, an ``int`` in digits, a tuple
    as JSON. 7 and ``"7"`` are equal keys. The hash stays when the key is gone, without ``value``,
    since an older entry might come late. Give the hashes no time to live.

    Needs ``pip install 'txtopo[redis]'`` where entries are exported.

    :param url: as a ``RedisStore`` takes it, without a password. For a cluster, any node, and a
        prefix with braces, such as ``{counts}:``, which puts all keys on one node.
    :param prefix: the beginning of each name, such as ``counts:``.
    :param accept_loss: True to tell also a server that may forget acknowledged writes.
    :param password_env: an environment variable with the password, in the exporting process.
    :param password_file: a file whose first line is the password.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        accept_loss: bool = False,
        password_env: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(f"{redis_store.server_of('RedisExporter', url)}#{prefix}")
        if not isinstance(prefix, str) or not prefix or prefix.startswith("txtopo:"):
            raise errors.UsageError(
                f"a RedisExporter cannot have the prefix {prefix!r}\n  Give a text such as 'counts:'. Stores' names begin with txtopo:."
            )
        access = places.access("RedisExporter", url, password_env, password_file, _LIMITS)
        self._place = places.Place(prefix, self.address, url, "", False, **access)
        self._accept_loss, self._node = accept_loss, None

    def _tell(self, last: Sequence[SequencedExport]) -> None:
        names = [self._place.name + linked.text_of(entry.key) for entry in last]
        arguments: list[Any] = [last[0].generation]
        for entry in last:
            value = "" if entry.value is None else json.dumps(entry.value, ensure_ascii=False)
            arguments += [entry.sequence, value]
        backend = self._backend("redis", "redis")
        try:
            if self._link is None or self._link.has_news:
                self.close()
                self._link = backend.connections.Link(self._place, self._node)
                self._link.check_may_be_written(self._accept_loss)
            answer = self._link.run(TELL, names, arguments)
        except Exception as error:
            # A cluster names the node that has the keys. After a fail-over that node may be gone.
            self._node = backend.faults.moved_to(error)
            if "hash to the same slot" not in str(error):
                raise
            raise errors.SetupError(
                f"the cluster has the keys with the prefix {self._place.name} on several nodes\n"
                "  Give a prefix with braces, such as {counts}:, which puts all keys on one node."
            ) from error
        if answer:
            entry, stored = last[answer[0] - 1], answer[1].decode()
            if not stored:
                raise EntryRefusedError(
                    entry.key, f"a value in {self.address} has its name, and was not exported"
                )
            cure = f"Remove the keys with this prefix, or take another prefix. {linked.REPLAY}"
            raise self._mismatch(entry, stored, cure)
