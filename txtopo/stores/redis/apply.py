"""The step that changes a store in Redis: if fence and rows are still as they were read, the server
does the whole step, otherwise no part.

Apart from ``layout``, which has the names and texts of the kept keys: a task's last step, the
raising of a fence and maintenance are all this one script, each with other arguments. The script
compares and replaces and knows no rule but one, which rows are *ordinary* (see
:meth:`txtopo.stores.sessions.Session.merge_rows`): the server combines the given integers with the
integers of the rows, so that no task reads these rows. Standard library only.

Invariants:
    - The script makes all of its checks before its first change.
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
    """Integers that the server combines with the integers of its rows."""

    deltas: Mapping[str, int]
    """By key. Integers of fewer than 16 digits, whose sums are exact as Lua's numbers.
    """
    how: merge.Merge
    mine: stamps.Stamp
    settled_txid: int


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The changes of one step, and their conditions."""

    born: str
    held: str
    form: str
    field: str = ""
    """Of the fence; empty if any fence will do."""
    fence: str = ""
    """The fence that must be there; empty if none."""
    new_fence: str = ""
    """Empty: as it is."""
    length: str = ""
    """The length that the list of written keys must have; empty if that does not matter."""
    forgets: bool = False
    """Whether that list is emptied."""
    together_max: int | None = None
    """The length that the list may have after this step; None: it is not added.
    """
    rows: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """By key: the row before the step, and the row after the step; empty for none."""
    marks: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Of keys for which that changes: whether they are deleted and still have a row."""
    merges: Merges | None = None
    task: int = 0
    number: int = 0
    """Of the store transaction among those of ``task`` in this attempt (R34); 0: it is none, and is
    not counted."""

    def arguments(self) -> list[Any]:
        """As the script has them."""
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
        arguments += [*_merging(self.merges), self.task, self.number]
        arguments.append(len(self.rows))
        for text, (kept, row) in self.rows.items():
            arguments += (text, kept, row)
        for text, is_deleted in self.marks.items():
            arguments += (int(is_deleted), text)
        return arguments


def _merging(merges: Merges | None) -> list[Any]:
    if merges is None:
        return ["", "", "[]", "", 0]
    # A key's text has no line feed of its own, and as many keys as one argument are sent and taken
    # in much faster.
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
"""meta, fences, rows, order, deleted, written, counts; what :class:`Change` says, of merges the
operator (none: there are none), their keys one to a line, what each is combined with in JSON, the
stamp and which transactions are settled; the task, and the number of its store transaction, 0 for
none; the number of rows, each as its key, what must be there, what is to be there; then the keys
that are deleted from now on, each after a 1, or no longer, each after a 0 → done and the version,
or what is not as it must be: held, fence, written, many, rows; or unmerged: not all rows to combine
with are ordinary."""
