"""The Lua scripts of queues. Redis runs each of them as one step, and writes it to its log as one step.

The delivery count of a pending entry tells its story, and names one delivery together with the consumer. It grows by one with
each delivery. A release raises it to the next multiple of `STEP`. So a delivery is a suspect if its count is not the first
after such a multiple: 1 for a new entry, `STEP` + 1 after the first release.

Times are in milliseconds. "Now" is the server's clock, unless a test gives another one.
"""

from onceonly.adapters.redis.entries import DATA
from onceonly.formats.cloudevents import UNREADABLE

STEP = 1_000_000
ID_BYTES = 12
"""Bytes in front of a message in the sorted set. They make it unlike the same message that was sent again."""
RELEASED = b"released"
"""The consumer that owns entries that were released. No process has this name."""
MOST_POPPED = 1000
"""Ids in the list of released entries that name none, and are passed over by one script."""
OTHERS = ":"
"""What the key of a stream of another program begins with in an argument. No name of an endpoint does."""
MOST_NAMED = 10
"""Names that a script returns for the log."""
NO_MESSAGE = "a member of the sorted set of delayed messages is not a message; it is the body. Correct its sender"
"""The reason of the dead letter."""

_NOW = """
local function now_at(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""

_FOREIGN = """
local foreign = {}
local function try(key, ...)  -- run a command on a key that another program may use: nil then
  local found = redis.pcall(...)
  if type(found) ~= 'table' or not found['err'] then return found end
  if not string.find(found['err'], 'WRONGTYPE', 1, true) then error(found) end
  foreign[#foreign + 1] = key
end
"""
"""For keys without which a queue works, though more slowly. Only the stream is not one of them."""

_HELD = f"""
local STEP, RELEASED = {STEP}, '{RELEASED.decode()}'
local function pending(stream, group, id)
  return redis.call('XPENDING', stream, group, id, id, 1)[1]
end
local function is_held(found, consumer, count)
  return found and found[2] == consumer and found[4] == tonumber(count)
end
"""

SEND = (
    _NOW
    + f"""
local DATA, MOST_NAMED, OTHERS = '{DATA}', {MOST_NAMED}, '{OTHERS}'
"""
    + """
local start, now, subscribers, answers, odd = ARGV[1], now_at(ARGV[2]), {}, {}, {}
local function names_in(key)  -- any program may add to the set: a key is made of the name of an endpoint only
  local names = {}
  for _, name in ipairs(redis.call('SMEMBERS', key)) do
    if #name <= 63 and string.find(name, '^[a-z][a-z0-9_.-]*$') then names[#names + 1] = name
    elseif #odd < MOST_NAMED then odd[#odd + 1] = string.sub(name, 1, 200) end
  end
  return names
end
local function targets_of(to, kind)
  if to ~= '' then return {to} end
  if not subscribers[kind] then subscribers[kind] = names_in(start .. 'subscribers:' .. kind) end
  return subscribers[kind]
end
local function delay(name, due, id, packed, body)
  local delayed, member = start .. 'delayed:' .. name, id .. struct.pack('>I4', #packed) .. packed .. body
  redis.call('ZADD', delayed, due, member)
  if redis.call('ZRANK', delayed, member) == 0 then  -- receivers look now and then without a wake
    redis.pcall('XADD', start .. 'wake:' .. name, 'MAXLEN', 1, '*', 'w', '')
  end
end
local function check(targets, later)  -- before the first write: an error then means that nothing was done
  for _, name in ipairs(targets) do
    local key = start .. (later and 'delayed:' or 'stream:') .. name
    local kind = redis.call('TYPE', key)['ok']
    if kind ~= 'none' and kind ~= (later and 'zset' or 'stream') then
      error({err = 'WRONGTYPE the key ' .. key .. ' is a ' .. kind})
    end
  end
end
local function fields_of(packed, body, field)
  local fields = cmsgpack.unpack(packed)
  fields[#fields + 1], fields[#fields + 2] = field or DATA, body
  return unpack(fields)
end
local function send(to, kind, due, id, packed, body)
  local later = due ~= '' and tonumber(due) > now
  if string.sub(to, 1, #OTHERS) == OTHERS then  -- a stream of another program
    if later then return -1 end
    return redis.call('XADD', string.sub(to, #OTHERS + 1), 'NOMKSTREAM', '*', fields_of(packed, body, kind)) and 1 or -1
  end
  local targets = targets_of(to, kind)
  if to ~= '' and not later then
    return redis.call('XADD', start .. 'stream:' .. to, 'NOMKSTREAM', '*', fields_of(packed, body)) and 1 or -1
  end
  if to ~= '' and redis.call('EXISTS', start .. 'stream:' .. to) == 0 then return -1 end
  if #targets > 1 then check(targets, later) end
  for _, name in ipairs(targets) do
    if later then delay(name, due, id, packed, body)
    else redis.call('XADD', start .. 'stream:' .. name, '*', fields_of(packed, body)) end
  end
  return #targets
end
for at = 3, #ARGV, 6 do
  local fine, answer = pcall(send, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  if not fine and type(answer) ~= 'table' then answer = {err = tostring(answer)} end
  answers[#answers + 1] = answer
end
return {answers, odd}
"""
)
"""Sends messages, each to its endpoint or to the subscribers of its type. KEYS: any key of the prefix.

ARGV: start of all keys, now, then for each message: endpoint, or empty, or `OTHERS` and a key; type, or after `OTHERS` the
field of the body; due or empty, an id of this sending of `ID_BYTES` where there is a due, packed fields and values, body.
Returns a list, for each how many queues have it, -1 if its endpoint was not declared or its stream does not exist, or an error;
and a list of subscribers whose names are not those of endpoints.
"""

TAKE = (
    _NOW
    + _FOREIGN
    + _HELD
    + f"""
local ID_BYTES, DATA, MOST_POPPED = {ID_BYTES}, '{DATA}', {MOST_POPPED}
local UNREADABLE, NO_MESSAGE = '{UNREADABLE}', '{NO_MESSAGE}'
"""
    + """
local stream, delayed, released, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, me, limit, lease, cursor = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local released_first, now = ARGV[6] == '1', now_at(ARGV[7])
local taken, number, full, has_released = {}, 0, nil, true
local function add(entry, count)
  local all, fields, used, body_at, body = entry[2], {entry[1], string.format('%.0f', count)}, 2, 0, ''
  for at = #all - 1, 1, -2 do
    if all[at] == DATA then body_at, body = at, all[at + 1] break end
  end
  for at = 1, #all, 2 do
    if at ~= body_at then
      fields[used + 1], fields[used + 2] = all[at], all[at + 1]
      used = used + 2
    end
  end
  number = number + 1
  taken[2 * number - 1], taken[2 * number] = cmsgpack.pack(fields), body
end

local function fields_of(member)  -- any program may add one
  local size, start = struct.unpack('>I4', member, ID_BYTES + 1)
  if start + size - 1 > #member then error('it is cut') end
  local fields = cmsgpack.unpack(string.sub(member, start, start + size - 1))
  if type(fields) ~= 'table' or #fields == 0 or #fields % 2 ~= 0 then error('it has no fields') end
  for at = 1, #fields do  -- not ipairs, which ends at the first nil
    if type(fields[at]) ~= 'string' then error('a field is not text') end
  end
  fields[#fields + 1], fields[#fields + 2] = DATA, string.sub(member, start + size)
  return unpack(fields)
end
local function add_to_stream(...)
  return redis.pcall('XADD', stream, 'NOMKSTREAM', '*', ...)
end
local due = try(delayed, 'ZRANGE', delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
local has_delayed = due ~= nil
due = due or {}
if #due > 0 then
  local about = redis.pcall('XPENDING', stream, group)
  if about['err'] then return about end
end
for _, member in ipairs(due) do
  local fine, added = pcall(function() return add_to_stream(fields_of(member)) end)
  if not fine then added = add_to_stream(UNREADABLE, NO_MESSAGE, DATA, member) end
  if type(added) == 'table' and added['err'] then full = added['err'] break end
  redis.call('ZREM', delayed, member)
end

local function take_lapsed()
  for _ = 1, 20 do
    local found = redis.call('XAUTOCLAIM', stream, group, me, lease, cursor, 'COUNT', limit - number)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do
      add(entry, pending(stream, group, entry[1])[4])
    end
    if cursor == '0-0' or number >= limit then return end
  end
end
local function take_released()
  for _ = 1, MOST_POPPED + limit do
    if number >= limit or not has_released then return end
    local id = try(released, 'LPOP', released)
    has_released = id ~= nil
    if not id then return end
    local about = redis.pcall('XPENDING', stream, group, id, id, 1)  -- any program may have added the id
    local found = not about['err'] and about[1]
    if found and found[2] == RELEASED then
      local entry = redis.call('XCLAIM', stream, group, me, 0, id)[1]
      if entry then add(entry, pending(stream, group, id)[4]) end
    end
  end
end
local function take_new()
  if number >= limit then return end
  local found = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', limit - number, 'STREAMS', stream, '>')
  if found then for _, entry in ipairs(found[1][2]) do add(entry, 1) end end
end
if cursor ~= '' then take_lapsed() end
if released_first then take_released() end
take_new()
take_released()

if number > 0 then return {taken, cursor, foreign} end
local position = '0-0'
for _, about in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local fields = {}
  for at = 1, #about, 2 do fields[about[at]] = about[at + 1] end
  if fields['name'] == group then position = fields['last-delivered-id'] end
end
local woken = try(wake, 'XREVRANGE', wake, '+', '-', 'COUNT', 1)
woken = woken and (woken[1] or {'0-0'})[1] or ''
local first = has_delayed and redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES') or {}
local left = first[2] and math.max(0, tonumber(first[2]) - now) or -1
if left > 1e15 then left = -1 end
return {taken, cursor, foreign, position, woken, left, full or ''}
"""
)
"""Takes deliveries. KEYS: stream, delayed, released, wake.

ARGV: group, consumer, limit, lease, where to look on for ended leases (empty: do not look), whether released entries come
first, now. Moves what is due into the stream. Returns a list with two values for each, [id, count, fields and values] packed
and the body, where to look on for ended leases, and keys of another type. If there are none also: the last id that was
delivered, the last id of `wake` (empty: it has another type), milliseconds until the next is due or -1, and why what is due
cannot be moved.
"""

ACK = (
    _HELD
    + """
local stream, group, me, ids = KEYS[1], ARGV[1], ARGV[2], {}
for at = 3, #ARGV, 2 do
  if is_held(pending(stream, group, ARGV[at]), me, ARGV[at + 1]) then ids[#ids + 1] = ARGV[at] end
end
if #ids > 0 then
  redis.call('XACK', stream, group, unpack(ids))
  redis.call('XDEL', stream, unpack(ids))
end
return #ids
"""
)
"""Deletes deliveries that the consumer still holds. KEYS: stream. ARGV: group, consumer, then id and count of each."""

RELEASE = (
    _FOREIGN
    + _HELD
    + """
local stream, released, wake, group, me, done, listed = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], 0, true
for at = 3, #ARGV, 2 do
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  if is_held(pending(stream, group, id), me, count) then
    local raised = (math.floor(count / STEP) + 1) * STEP
    if raised < STEP or raised > 1e15 then raised = STEP end  -- another program has set the count
    redis.call('XCLAIM', stream, group, RELEASED, 0, id, 'RETRYCOUNT', string.format('%.0f', raised), 'JUSTID')
    listed = listed and try(released, 'RPUSH', released, id)
    done = done + 1
  end
end
if done > 0 then try(wake, 'XADD', wake, 'MAXLEN', 1, '*', 'w', '') end
return foreign
"""
)
"""Releases deliveries that the consumer still holds. KEYS: stream, released, wake. ARGV: as for `ACK`.

Returns the keys of another type. Without the list, what was released is delivered when its lease would have ended.

The first write is allowed also while the server is out of memory, and after it all others are.
"""

EXTEND = (
    _HELD
    + """
local stream, group, me, lease = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
for at = 4, #ARGV, 2 do
  local found = pending(stream, group, ARGV[at])
  if is_held(found, me, ARGV[at + 1]) and found[3] < lease then
    redis.call('XCLAIM', stream, group, me, 0, ARGV[at], 'JUSTID')
  end
end
return 0
"""
)
"""Renews leases that have not ended. KEYS: stream. ARGV: group, consumer, lease, then id and count of each."""

FIND_STRANDED = (
    _HELD
    + """
local stream, group, cursor, most, found, last = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), 0, nil
for _, about in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local fields = {}
  for at = 1, #about, 2 do fields[about[at]] = about[at + 1] end
  if fields['name'] == group then
    last = fields['last-delivered-id']
    if fields['lag'] and redis.call('XLEN', stream) == fields['pending'] + fields['lag'] then return {0, ''} end
  end
end
if not last then return {0, ''} end
local entries = redis.call('XRANGE', stream, cursor == '' and '-' or '(' .. cursor, last, 'COUNT', most)
for _, entry in ipairs(entries) do
  cursor = entry[1]
  if not pending(stream, group, cursor) then
    redis.call('XCLAIM', stream, group, RELEASED, 0, cursor, 'FORCE', 'RETRYCOUNT', 1, 'JUSTID')
    found = found + 1
  end
end
return {found, #entries < most and '' or cursor}
"""
)
"""Finds entries that were delivered and are not pending: their consumer was deleted, and its pending entries with it.

An acknowledged entry is deleted in the same step, so these were never acknowledged. Each is delivered again a lease later, as
a suspect. KEYS: stream. ARGV: group, where to look on (empty: at the start), how many entries are looked at. Returns how many
were found, and where to look on (empty: all were looked at).
"""

DECLARE = """
local stream, subscriptions, start, group, name = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local sets = {subscriptions}
for at = 6, #ARGV do sets[#sets + 1] = start .. 'subscribers:' .. ARGV[at] end
for _, key in ipairs(sets) do
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'none' and kind ~= 'set' then return {err = 'WRONGTYPE the key ' .. key .. ' is a ' .. kind} end
end
local made = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if made['err'] and not string.find(made['err'], 'BUSYGROUP', 1, true) then return made end
for at = 6, 5 + tonumber(ARGV[5]) do
  redis.call('SADD', start .. 'subscribers:' .. ARGV[at], name)
  redis.call('SADD', subscriptions, ARGV[at])
end
for at = 6 + tonumber(ARGV[5]), #ARGV do
  redis.call('SREM', start .. 'subscribers:' .. ARGV[at], name)
  redis.call('SREM', subscriptions, ARGV[at])
end
for _, about in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local fields = {}
  for at = 1, #about, 2 do fields[about[at]] = about[at + 1] end
  if fields['pending'] == 0 and fields['idle'] > tonumber(ARGV[4]) then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, fields['name'])
  end
end
return 0
"""
"""Creates a stream and its group, and changes subscriptions. KEYS: stream, subscriptions.

ARGV: start of all keys, group, endpoint, milliseconds after which a consumer that holds nothing is deleted, number of new
subscriptions, their types, and the types to unsubscribe from.
"""

LEAVE = """
for _, about in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local fields = {}
  for at = 1, #about, 2 do fields[about[at]] = about[at + 1] end
  if fields['name'] == ARGV[2] and fields['pending'] == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
  end
end
return 0
"""
"""Deletes a consumer if it holds nothing: what it holds would be deleted with it. KEYS: stream. ARGV: group, consumer."""

DEPTH = (
    _NOW
    + _HELD
    + """
local stream, delayed, group, lease, now = KEYS[1], KEYS[2], ARGV[1], ARGV[2], now_at(ARGV[3])
local about = redis.pcall('XPENDING', stream, group)
if about['err'] then
  if string.find(about['err'], 'NOGROUP', 1, true) then return -1 end
  return about
end
local all, released, lapsed, from = about[1], 0, 0, '-'
for _, each in ipairs(about[4] or {}) do
  if each[1] == RELEASED then released = tonumber(each[2]) end
end
repeat
  local found = redis.call('XPENDING', stream, group, 'IDLE', lease, from, '+', 1000)
  for _, each in ipairs(found) do
    if each[2] ~= RELEASED then lapsed = lapsed + 1 end
    from = '(' .. each[1]
  end
until #found < 1000
local due, all_delayed = redis.pcall('ZCOUNT', delayed, '-inf', now), redis.pcall('ZCARD', delayed)
if type(due) ~= 'number' then due, all_delayed = 0, 0 end  -- another program's key
local waiting = math.max(0, redis.call('XLEN', stream) - all) + released + lapsed + due
return {waiting, all - released - lapsed, all_delayed - due}
"""
)
"""Counts [waiting, held, delayed], or returns -1 for a queue that was never declared. KEYS: stream, delayed.

ARGV: group, lease, now.
"""
