"""Defines a store's layout in Redis: key names, rows and fences as texts, and scripts that make a
store, open it, hold it and read it.

Layout, version 2. The name in braces puts all keys into one hash slot, and so on one cluster node::

    txtopo:{<name>}:meta      hash: layout, form (what values there are), born, version (of the whole store, one more with every change),
                              tenure (the last of ``served``), held (why no task may write: being adopted or cleared, or something is lost),
                              written:["topology","component"] (how many keys the list below has)
    txtopo:{<name>}:fences    hash: ["topology","component"] → ["generation",txid,attempt,tenure]
    txtopo:{<name>}:counts:["topology","component"]
                              hash: task → how many store transactions it has applied in the attempt of the fence (R34)
    txtopo:{<name>}:rows      hash: key → ["topology","generation","component",task,txid,attempt], a line feed, [prev_txid,prev,curr]
                              JSON; key, prev and curr are JSON texts; curr null: deleted, prev null: was not there; a list of more than three if one
                              transaction updated the key repeatedly: what each update made of it
    txtopo:{<name>}:order     sorted set of all keys, all of score 0, and so ordered by code points
    txtopo:{<name>}:deleted   set of the keys that are deleted and still have a row
    txtopo:{<name>}:served    hash: tenure → server process (run_id), version of the store when it first served it
    txtopo:{<name>}:written:["topology","component"]
                              list: the keys that a task wrote in the transaction of the fence, one to a line (R31)

People, and programs in other languages, read this layout, too. The script that changes rows is in
``apply``. Standard library only.

Invariants:
    - A script makes all its checks before its first change.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json

from txtopo.stores import stamps

LAYOUT_VERSION = 2
"""The layout's version. Stores with any other version are refused."""

TENURES_MAX = 1000
"""How many server processes a store remembers."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_text = json.encoder.encode_basestring
"""Encodes a str as ``_encode`` does, without checking its type."""
_decode = json.JSONDecoder().raw_decode


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """A script for the server, and the digest by which the server knows the script."""

    text: str
    digest: str


class Names:
    """The Redis keys of store ``name``."""

    def __init__(self, name: str) -> None:
        base = f"txtopo:{{{name}}}:"
        self.meta = f"{base}meta"
        self.fences = f"{base}fences"
        self.rows = f"{base}rows"
        self.order = f"{base}order"
        self.deleted, self.served = f"{base}deleted", f"{base}served"
        self._written, self._counts = f"{base}written:", f"{base}counts:"

    def written(self, topology_id: str, component: str) -> str:
        """The Redis key for the list of keys that a component wrote."""
        return self._written + fence_field(topology_id, component)

    def counts(self, topology_id: str, component: str) -> str:
        """The Redis key for the counts of a component's store transactions."""
        return self._counts + fence_field(topology_id, component)


def fence_field(topology_id: str, component: str) -> str:
    """The field for a component's fence."""
    return _encode([topology_id, component])


def fence_text(fence: stamps.Fence, tenure: int) -> str:
    """The text for a fence that was raised under ``tenure``."""
    return _encode([fence.generation, fence.txid, fence.attempt, tenure])


def fence_of(field: str, text: str, count: int = 0) -> tuple[stamps.Fence, int]:
    """The fence with its ``count``, and its tenure."""
    generation, txid, attempt, tenure = json.loads(text)
    topology_id, component = json.loads(field)
    return stamps.Fence(topology_id, component, generation, txid, attempt, count), tenure


def row_text(row: stamps.Row) -> str:
    """The text for ``row``."""
    values = ",".join(
        ["null" if value is None else _encode_text(value) for value in (row.prev, *row.steps)]
    )
    return f"{stamp_text(row.stamp)}\n[{row.prev_txid},{values}]"


def row_of(key: str, text: str) -> stamps.Row:
    """The row in ``text``. A new object each time."""
    stamp, _, value = text.partition("\n")
    prev_txid, prev, *steps = _decode(value)[0]
    return stamps.Row(key, _stamp_of(stamp), prev, prev_txid, steps)


@functools.lru_cache(maxsize=1024)
def stamp_text(stamp: stamps.Stamp) -> str:
    """The first line in the text for a row with ``stamp``."""
    return _encode(stamps.parts_of(stamp))


@functools.lru_cache(maxsize=1024)
def _stamp_of(text: str) -> stamps.Stamp:
    return stamps.Stamp(*json.loads(text))


def script(text: str) -> Script:
    """The script with this text."""
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


MAKE = script("""
if redis.call('EXISTS', KEYS[1]) == 1 then return 'there' end
if redis.call('EXISTS', unpack(KEYS, 2)) > 0 then return 'foreign' end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'layout', ARGV[1], 'born', now[1] .. '.' .. now[2] .. '.' .. ARGV[2], 'version', 0, 'tenure', 0, 'form', ARGV[3])
return 'made'
""")
"""Keys: meta, and all other keys. Arguments: layout, run_id, form. Returns there, made, or foreign
(the keys belong to another program)."""

OPEN = script(f"""
local meta = redis.call('HMGET', KEYS[1], 'layout', 'born', 'version', 'tenure', 'held')
if not meta[1] then return {{}} end
if meta[1] ~= ARGV[1] then return {{meta[1]}} end
local form = redis.call('HGET', KEYS[1], 'form')
if form ~= ARGV[5] and redis.call('EXISTS', KEYS[5]) == 0 then
  form = ARGV[5]
  redis.call('HSET', KEYS[1], 'form', form)
end
local tenure = tonumber(meta[4])
local served = redis.call('HGET', KEYS[3], tenure)
if not served or string.sub(served, 1, #ARGV[2] + 1) ~= ARGV[2] .. ' ' then
  tenure = redis.call('HINCRBY', KEYS[1], 'tenure', 1)
  redis.call('HSET', KEYS[3], tenure, ARGV[2] .. ' ' .. meta[3])
  redis.call('HDEL', KEYS[3], tenure - {TENURES_MAX})
end
local count = 0
for _, number in ipairs(redis.call('HVALS', KEYS[6])) do count = count + number end
local then_served = redis.call('HMGET', KEYS[3], ARGV[4], ARGV[4] + 1)
return {{meta[1], meta[2], tonumber(meta[3]), tenure, meta[5] or '', redis.call('HGET', KEYS[2], ARGV[3]) or '',
  then_served[1] or '', then_served[2] or '', redis.call('SCARD', KEYS[4]), form, count, tonumber(redis.call('HGET', KEYS[6], ARGV[6]) or 0)}}
""")
"""Keys: meta, fences, served, deleted, rows, counts. Arguments: layout, run_id, the fence's field,
a tenure, form, a task. Returns ``[]`` if the store does not exist, ``[layout]`` if its layout is
different, else layout and the fields of ``session.Opened`` in order. An empty store takes the given
form."""

HOLD = script("""
local meta = redis.call('HMGET', KEYS[1], 'born', 'version')
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then return '' end
local held = ARGV[3] .. ' ' .. redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HSET', KEYS[1], 'held', held, 'form', ARGV[4])
return held
""")
"""Key: meta. Arguments: expected born and version, the hold's reason, form. Returns the text that
permits later changes, empty if the store has changed."""

RELEASE = script("""
local held = redis.call('HMGET', KEYS[1], 'born', 'held')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
redis.call('HINCRBY', KEYS[1], 'version', 1)
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
  redis.call('DEL', KEYS[i], KEYS[i + 1])
  redis.call('HDEL', KEYS[1], 'written:' .. ARGV[i])
end
redis.call('HDEL', KEYS[1], 'held')
return 1
""")
"""Keys: meta, fences, then two per component: list, counts. Arguments: expected born and held, then
two per component: the fence's field, and the fence (empty: remove the fence). Returns 1 if done."""

RANGES = script("""
local answer = redis.call('HMGET', KEYS[1], 'layout', 'form', 'born', 'version')
for i = 2, #ARGV, 2 do
  local keys = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[i], ARGV[i + 1], 'LIMIT', 0, ARGV[1])
  local rows = {}
  for j = 1, #keys, 2000 do
    local some = redis.call('HMGET', KEYS[3], unpack(keys, j, math.min(j + 1999, #keys)))
    for k = 1, #some do rows[#rows + 1] = some[k] or '' end
  end
  answer[#answer + 1] = {keys, rows}
end
return answer
""")
"""Keys: meta, order, rows. Arguments: the most rows in a range, then two per range: from and to.
Returns layout, form, born and version, then two lists per range: keys and rows in order."""
