"""Changes a store in Redis by one script: if fence and rows are still as read, the server makes all
changes, otherwise none.

A task's last step, raising a fence and maintenance all run this script, with different arguments.
The script compares and replaces. It knows only one rule: which rows are *ordinary* (see
:meth:`txtopo.stores.sessions.Session.merge_rows`). The server combines integers with ordinary rows
itself, so that no task reads these rows. Standard library only.

Invariants:
    - The script makes all its checks before its first change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from txtopo.stores import stamps
from txtopo.stores.redis import layout
from txtopo.topology import merge


@dataclasses.dataclass(frozen=True, slots=True)
class Merges:
    """Integers that the server combines with stored integers."""

    deltas: Mapping[str, int]
    """By key. Integers have fewer than 16 digits: Lua's numbers then add exactly."""
    how: merge.Merge
    mine: stamps.Stamp
    settled_txid: int


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A step's changes, and the conditions for making them."""

    born: str
    held: str
    form: str
    field: str = ""
    """The fence's field, empty if any fence will do."""
    fence: str = ""
    """The expected fence, empty if no fence may exist."""
    new_fence: str = ""
    """Replaces the fence. Empty: the fence stays."""
    length: str = ""
    """The expected length of the list of written keys, empty if any length will do."""
    forgets: bool = False
    """Whether the step empties the list."""
    together_max: int | None = None
    """How many keys the list may hold after this step. None: the step adds no keys to the list."""
    rows: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """By key: the row before the step and the row after the step, empty for no row."""
    marks: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """By key, if the step changes it: whether the key is deleted and still has a row."""
    merges: Merges | None = None
    task: int = 0
    number: int = 0
    """The store transaction's number within ``task`` and attempt, from 1 on (R34). 0: the step is
    no store transaction, and is not counted."""

    def arguments(self) -> list[Any]:
        together = "" if self.together_max is None else self.together_max
        arguments: list[Any] = [
            self.born,
            self.held,
            self.field,
            self.fence,
            self.new_fence,
            self.length,
            int(self.forgets),
            together,
            self.form,
        ]
        arguments += [*_merge_arguments(self.merges), self.task, self.number]
        arguments.append(len(self.rows))
        for text, (kept, row) in self.rows.items():
            arguments += (text, kept, row)
        for text, is_deleted in self.marks.items():
            arguments += (int(is_deleted), text)
        return arguments


def _merge_arguments(merges: Merges | None) -> list[Any]:
    if merges is None:
        return ["", "", "[]", "", 0]
    # All keys travel as one argument, which is much faster than an argument per key. A key's text
    # has no line feed.
    keys, deltas = "\n".join(merges.deltas), json.dumps(list(merges.deltas.values()))
    return [merges.how.operator, keys, deltas, layout.stamp_text(merges.mine), merges.settled_txid]


APPLY = layout.script("""
local born, held, field, fence, new_fence, length, forgets, together_max, form = unpack(ARGV, 1, 9)
local operator, merged_keys, merged_deltas, stamp, settled = unpack(ARGV, 10, 14)
local task, number = ARGV[15], tonumber(ARGV[16])
local first, last = 18, 17 + 3 * ARGV[17]
local deltas = cjson.decode(merged_deltas)

local meta = redis.call('HMGET', KEYS[1], 'born', 'held', 'form')
if meta[1] ~= born or (meta[2] or '') ~= held or meta[3] ~= form then return {'held', meta[2] or ''} end
if field ~= '' then
  local found = redis.call('HGET', KEYS[2], field) or ''
  if found ~= fence then return {'fence', found} end
end
if length ~= '' and redis.call('LLEN', KEYS[6]) ~= tonumber(length) then return {'written'} end
local count = 'written:' .. field
if together_max ~= '' then
  local together = (redis.call('HGET', KEYS[1], count) or 0) + ARGV[17] + #deltas
  if together > tonumber(together_max) then return {'many', together} end
end

local function in_portions(items, act)
  for i = 1, #items, 2000 do act(unpack(items, i, math.min(i + 1999, #items))) end
end
local function rows_of(keys)
  local rows = {}
  in_portions(keys, function(...)
    for _, row in ipairs(redis.call('HMGET', KEYS[3], ...)) do rows[#rows + 1] = row or '' end
  end)
  return rows
end
local names, changed = {}, {}
for i = first, last, 3 do names[#names + 1] = ARGV[i] end
for i, there in ipairs(rows_of(names)) do
  if there ~= ARGV[first + 3 * i - 2] then
    changed[#changed + 1] = names[i]
    changed[#changed + 1] = there
  end
end
if #changed > 0 then return {'rows', changed} end

local set, new, removed, keys = {}, {}, {}, {}
local function put(key, row, is_new)
  set[#set + 1] = key
  set[#set + 1] = row
  if is_new then
    new[#new + 1] = 0
    new[#new + 1] = key
  end
end
if #deltas > 0 then
  settled = tonumber(settled)
  local writer = string.match(stamp, '^(.*,)%d+,%d+,%d+%]$')
  local combine = ({add = function(old, delta) return old + delta end, min = math.min, max = math.max})[operator]
  local others = {}
  for key in string.gmatch(merged_keys, '[^\\n]+') do others[#others + 1] = key end
  for i, row in ipairs(rows_of(others)) do
    local key = others[i]
    if row == '' then
      put(key, string.format('%s\\n[0,null,"%.0f"]', stamp, deltas[i]), true)
    else
      if string.sub(row, 1, #writer) ~= writer then return {'unmerged'} end
      local txid, curr = string.match(row, '^%d+,(%d+),%-?%d+%]\\n%[.*,"(%-?%d+)"%]$', #writer + 1)
      if not txid or tonumber(txid) > settled or #curr > 15 then return {'unmerged'} end
      put(key, string.format('%s\\n[%s,"%s","%.0f"]', stamp, txid, curr, combine(tonumber(curr), deltas[i])), false)
    end
  end
end

local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
for i = first, last, 3 do
  local key, row = ARGV[i], ARGV[i + 2]
  if row == '' then
    removed[#removed + 1] = key
  else
    put(key, row, ARGV[i + 1] == '')
    keys[#keys + 1] = key
  end
end
in_portions(set, function(...) redis.call('HSET', KEYS[3], ...) end)
in_portions(new, function(...) redis.call('ZADD', KEYS[4], ...) end)
in_portions(removed, function(...)
  redis.call('HDEL', KEYS[3], ...)
  redis.call('ZREM', KEYS[4], ...)
end)
local deleted, kept = {}, {}
for i = last + 1, #ARGV, 2 do
  local which = ARGV[i] == '1' and deleted or kept
  which[#which + 1] = ARGV[i + 1]
end
in_portions(deleted, function(...) redis.call('SADD', KEYS[5], ...) end)
in_portions(kept, function(...) redis.call('SREM', KEYS[5], ...) end)
if forgets == '1' then
  redis.call('DEL', KEYS[6])
  redis.call('HDEL', KEYS[1], count)
end
if together_max ~= '' then
  if #keys > 0 then redis.call('RPUSH', KEYS[6], table.concat(keys, '\\n')) end
  if #deltas > 0 then redis.call('RPUSH', KEYS[6], merged_keys) end
  redis.call('HINCRBY', KEYS[1], count, #keys + #deltas)
end
if new_fence ~= '' then
  redis.call('HSET', KEYS[2], field, new_fence)
  redis.call('DEL', KEYS[7])
end
if number > tonumber(redis.call('HGET', KEYS[7], task) or 0) then redis.call('HINCRBY', KEYS[7], task, 1) end
return {'done', version}
""")
"""Keys: meta, fences, rows, order, deleted, written, counts.

Arguments, from :class:`Change`: born, held, field, fence, new fence, length, forgets, together_max,
form · the merges' operator (empty: no merges), keys (one per line), integers (JSON), stamp and
settled txid · task and transaction number · the row count, then three per row: key, row before, row
after · two per mark: 1 (deleted from now on) or 0 (no longer deleted), and the key.

Returns done and the version, or the condition that failed: held, fence, written, many, rows, or
unmerged (not all rows to combine with are ordinary)."""
