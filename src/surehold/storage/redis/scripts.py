"""The Lua scripts that run inside the server: each is one atomic step.

Every script has the beginning of the run's keys as its only key. Its first arguments are the
beginning of the indexes' keys, the run id, and "1" if the indexes are on the same server; else
the script returns the changes to the indexes for the client to make. Scripts that change queues
return that nothing was done if an entry is not as the client had read it.

`meta` of a record is ``PLACE ZONE HIDDEN SIZE`` and then, as netstrings, its name, its status, its
id and its facets. A place is the server's time in microseconds, and rises within a run.
"""

from __future__ import annotations

from hashlib import sha1

from surehold.storage.shared import SAVED_BY_HAND


class Script:
    """A script and the digest that the server knows it by."""

    def __init__(self, body: str) -> None:
        self.text = _COMMON + body
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_COMMON = r"""
local run, idx, id, together = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local call, changes = redis.call, {}
local fields = {'ordinal', 'seq', 'digest', 'name', 'status', 'latest', 'checkpoints', 'stored',
    'started', 'saved', 'place'}

local function text(number) return string.format('%.0f', number) end

local function mark(...)
    if together then call(...) else changes[#changes + 1] = {...} end
end

local function parts_of(data)
    local parts, at = {}, 1
    while at <= #data do
        local colon = string.find(data, ':', at, true)
        local size = tonumber(string.sub(data, at, colon - 1))
        parts[#parts + 1] = string.sub(data, colon + 1, colon + size)
        at = colon + size + 1
    end
    return parts
end

local function get_meta(seq)
    local data = call('HGET', run .. 'meta', seq)
    if not data then return nil end
    local place, zone, hidden, size, rest = string.match(data, '^(%d+) (%a) (%d) (%d+) (.*)$')
    if not place then return nil end
    return {place = place, zone = zone, hidden = hidden == '1', size = tonumber(size),
        rest = rest, parts = parts_of(rest)}
end

local function put_meta(seq, meta)
    call('HSET', run .. 'meta', seq, table.concat({meta.place, meta.zone,
        meta.hidden and '1' or '0', text(meta.size), meta.rest}, ' '))
end

local function by_id(seq, meta) return meta.parts[3] .. '\0' .. seq .. ':' .. id end

local function facets_of(meta)
    local note = meta.zone == 'n'
    local keys, kind = {idx .. (note and 'n' or 'c')}, note and 'g:' or 'f:'
    for at = 4, #meta.parts do keys[#keys + 1] = idx .. kind .. meta.parts[at] end
    return keys
end

local function list(seq, meta)
    mark('ZADD', idx .. 'ids', '0', by_id(seq, meta))
    if meta.hidden then return end
    call('ZADD', run .. meta.zone, seq, seq)
    for _, key in ipairs(facets_of(meta)) do mark('ZADD', key, meta.place, seq .. ':' .. id) end
end

local function unlist(seq, meta)
    call('ZREM', run .. meta.zone, seq)
    for _, key in ipairs(facets_of(meta)) do mark('ZREM', key, seq .. ':' .. id) end
end

local function get_head()
    local values = call('HMGET', run .. 'head', unpack(fields))
    if not values[1] then return nil end
    local head = {}
    for at, field in ipairs(fields) do head[field] = values[at] end
    return head
end

-- A run that was stored and not deleted, and has no head: its key was deleted, or evicted.
local function is_lost()
    return call('EXISTS', run .. 'meta', run .. 'headers') > 0
        or (together and call('ZSCORE', idx .. 'runs', id) and true or false)
end

local function runs_of(head)
    if not head then return {} end
    local named = #head.name .. ':' .. head.name
    local keys = {'runs', 'runs:n:' .. head.name, 'runs:s:' .. head.status,
        'runs:ns:' .. named .. head.status}
    if head.status ~= 'completed' then
        keys[#keys + 1] = 'open'
        keys[#keys + 1] = 'open:n:' .. head.name
    end
    return keys
end

local function move_run(old, new)
    local there = {}
    for _, key in ipairs(runs_of(new)) do
        there[key] = true
        mark('ZADD', idx .. key, new.ordinal, id)
    end
    for _, key in ipairs(runs_of(old)) do
        if not there[key] then mark('ZREM', idx .. key, id) end
    end
end

-- A user without the right to publish still appends; readers then poll.
local function tell() redis.pcall('PUBLISH', idx .. 'changes', id) end

local function put_head(head, old)
    local values = {}
    for _, field in ipairs(fields) do
        values[#values + 1] = field
        values[#values + 1] = head[field]
    end
    call('HSET', run .. 'head', unpack(values))
    if not old or old.name ~= head.name or old.status ~= head.status then move_run(old, head) end
end

local function copy_of(head)
    local copy = {}
    for field, value in pairs(head) do copy[field] = value end
    return copy
end

local function settle(head, gone, checkpoints, stored)
    head.checkpoints = text(tonumber(head.checkpoints) - checkpoints)
    head.stored = text(tonumber(head.stored) - stored)
    if not gone[head.latest] then return end
    local newest = call('ZREVRANGE', run .. 'c', 0, 0)[1]
    local meta = get_meta(newest or head.seq)
    head.latest = newest or ''
    head.name = meta and meta.parts[1] or head.name
    head.status = newest and meta and meta.parts[2] or 'running'
end

local function hide(head, seqs)
    local count, checkpoints, gone = 0, 0, {}
    for _, seq in ipairs(seqs) do
        local meta = get_meta(seq)
        if meta and not meta.hidden then
            unlist(seq, meta)
            meta.hidden = true
            put_meta(seq, meta)
            gone[seq] = true
            count = count + 1
            if meta.zone ~= 'n' then checkpoints = checkpoints + 1 end
        end
    end
    settle(head, gone, checkpoints, 0)
    return count
end

local function erased_ranges()
    local ranges = {}
    for _, range in ipairs(call('ZRANGE', run .. 'erased', 0, -1)) do
        local first, last = string.match(range, '^(%d+)-(%d+)$')
        ranges[#ranges + 1] = {tonumber(first), tonumber(last)}
    end
    return ranges
end

local function add_erased(new)
    if #new == 0 then return end
    local ranges = erased_ranges()
    for _, range in ipairs(new) do ranges[#ranges + 1] = range end
    table.sort(ranges, function(a, b) return a[1] < b[1] end)
    local merged = {}
    for _, range in ipairs(ranges) do
        local before = merged[#merged]
        if before and range[1] <= before[2] + 1 then
            before[2] = math.max(before[2], range[2])
        else
            merged[#merged + 1] = {range[1], range[2]}
        end
    end
    call('DEL', run .. 'erased')
    for _, range in ipairs(merged) do
        call('ZADD', run .. 'erased', text(range[1]), text(range[1]) .. '-' .. text(range[2]))
    end
end

local function now()
    local time = call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Store the records whose six parts each begin at `at`.
local function insert(at, count, first_place, hidden)
    for n = 0, count - 1 do
        local base = at + 6 * n
        local seq, rest = ARGV[base], ARGV[base + 5]
        local place = type(first_place) == 'table' and first_place[seq] or first_place
        if type(place) == 'number' then place = text(place + n) end
        local meta = {place = place, zone = ARGV[base + 1], hidden = hidden[seq] or false,
            size = #ARGV[base + 4], rest = rest, parts = parts_of(rest)}
        call('HSET', run .. 'headers', seq, ARGV[base + 2] .. ' ' .. ARGV[base + 3])
        call('HSET', run .. 'bodies', seq, ARGV[base + 4])
        put_meta(seq, meta)
        list(seq, meta)
    end
    return at + 6 * count
end

local function ranges_at(at, count)
    local ranges = {}
    for n = 0, count - 1 do
        ranges[n + 1] = {tonumber(ARGV[at + 2 * n]), tonumber(ARGV[at + 2 * n + 1])}
    end
    return ranges, at + 2 * count
end

-- Compare fields of hashes with the values from `at` on: how many, then key, field, value of each.
local function as_expected(at)
    for base = at + 1, at + 3 * tonumber(ARGV[at]), 3 do
        if (call('HGET', ARGV[base], ARGV[base + 1]) or '') ~= ARGV[base + 2] then return false end
    end
    return true
end

-- Make the changes that follow there: the number of words of each, and the words.
local function make_changes(at)
    at = at + 1 + 3 * tonumber(ARGV[at])
    while at <= #ARGV do
        local size = tonumber(ARGV[at])
        call(unpack(ARGV, at + 1, at + size))
        at = at + size + 1
    end
end

local function forget()
    for _, seq in ipairs(call('HKEYS', run .. 'meta')) do
        local meta = get_meta(seq)
        if meta then
            if not meta.hidden then unlist(seq, meta) end
            mark('ZREM', idx .. 'ids', by_id(seq, meta))
        end
    end
    call('UNLINK', run .. 'headers', run .. 'bodies', run .. 'meta', run .. 'c', run .. 'x',
        run .. 'n', run .. 'erased')
end
"""

APPEND = Script(r"""
local base, prev, epoch, ordinal = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local count, gaps, hides = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
local newest = tonumber(call('HGET', run .. 'lease', 'epoch') or '0')
local old = get_head()
local seq, digest = old and old.seq or '0', old and old.digest or ''
if (count > 0 and (base ~= seq or (prev ~= '?' and prev ~= digest)))
    or (epoch ~= '' and tonumber(epoch) < newest) then
    return {0, seq, digest, text(newest)}
end
local queued = 18 + 6 * count + 2 * gaps + hides
if ARGV[queued] and not as_expected(queued) then return {2} end
if not old and count == 0 then return {1, changes} end
local head, at = nil, 18
if count > 0 then
    local added = {name = ARGV[8], status = ARGV[9], latest = ARGV[10]}
    if not old then mark('SET', idx .. 'format', '1', 'NX') end
    head = old and copy_of(old) or {name = '', status = 'running', latest = '', checkpoints = '0',
        stored = '0', started = ARGV[13], place = '0',
        ordinal = ordinal ~= '' and ordinal or text(call('INCR', idx .. 'ordinals'))}
    if added.latest ~= '' then
        head.latest, head.name, head.status = added.latest, added.name, added.status
    elseif head.latest == '' then
        head.name = added.name
    end
    local place = math.max(now(), tonumber(head.place) + 1)
    at = insert(at, count, place, {})
    head.place = text(place + count - 1)
    head.seq, head.digest = ARGV[at - 6], ARGV[at - 4]
    head.checkpoints = text(tonumber(head.checkpoints) + tonumber(ARGV[11]))
    head.stored = text(tonumber(head.stored) + tonumber(ARGV[12]))
    head.saved = ARGV[14]
    local ranges
    ranges, at = ranges_at(at, gaps)
    add_erased(ranges)
else
    head = copy_of(old)
end
local gone = {}
for n = 0, hides - 1 do gone[n + 1] = ARGV[at + n] end
if hides > 0 then hide(head, gone) end
put_head(head, old)
if ARGV[queued] then make_changes(queued) end
tell()
return {1, changes}
""")

COMMIT = Script(r"""
if not as_expected(4) then return 0 end
make_changes(4)
return 1
""")

DROP = Script(r"""
local old = get_head()
if not old then return {0, changes} end
local head, hides, seqs = copy_of(old), tonumber(ARGV[4]), {}
for at = 5 + hides, #ARGV do
    if ARGV[at] == head.seq then return {-1, changes} end
end
for n = 1, hides do seqs[n] = ARGV[4 + n] end
local count = hide(head, seqs)
local checkpoints, stored, gone, ranges = 0, 0, {}, {}
for at = 5 + hides, #ARGV do
    local seq = ARGV[at]
    local meta = get_meta(seq)
    if meta then
        if not meta.hidden then
            unlist(seq, meta)
            gone[seq] = true
            if meta.zone ~= 'n' then checkpoints = checkpoints + 1 end
        end
        mark('ZREM', idx .. 'ids', by_id(seq, meta))
        call('HDEL', run .. 'headers', seq)
        call('HDEL', run .. 'bodies', seq)
        call('HDEL', run .. 'meta', seq)
        stored = stored + meta.size
        count = count + 1
        ranges[#ranges + 1] = {tonumber(seq), tonumber(seq)}
    end
end
add_erased(ranges)
settle(head, gone, checkpoints, stored)
put_head(head, old)
return {count, changes}
""")

DELETE = Script(r"""
local head = get_head()
if not head then return {0, changes} end
if ARGV[4] then
    if not as_expected(4) then return {-2, changes} end
    make_changes(4)
end
local count = call('HLEN', run .. 'meta')
forget()
call('UNLINK', run .. 'head')
move_run(head, nil)
return {count, changes}
""")

REWRITE = Script(r"""
local old = get_head()
if not old then
    if not is_lost() then return {-1, '0', changes} end
    old = {seq = ARGV[4], digest = '', name = '', status = 'running', latest = '', place = '0',
        checkpoints = '0', stored = '0', started = ARGV[11], saved = ARGV[11],
        ordinal = text(now())}
    if together then
        old.ordinal = call('ZSCORE', idx .. 'runs', id) or text(call('INCR', idx .. 'ordinals'))
    end
end
if old.seq ~= ARGV[4] then return {0, old.seq, changes} end
local count, gaps, hides = tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
local aside, places, hidden, kept = run .. 'quarantine:' .. ARGV[5], {}, {}, {}
for n = 0, count - 1 do kept[ARGV[17 + 6 * n]] = ARGV[19 + 6 * n] .. ' ' .. ARGV[20 + 6 * n] end
for n = 0, hides - 1 do hidden[ARGV[17 + 6 * count + 2 * gaps + n]] = true end
for n = 0, count - 1 do
    local seq = ARGV[17 + 6 * n]
    local body = call('HGET', run .. 'bodies', seq)
    if body ~= ARGV[21 + 6 * n] then kept[seq] = nil end
end
local all = call('HKEYS', run .. 'meta')
for _, seq in ipairs(call('HKEYS', run .. 'headers')) do all[#all + 1] = seq end
for _, seq in ipairs(all) do
    local header = call('HGET', run .. 'headers', seq)
    if not kept[seq] or kept[seq] ~= header then
        for _, part in ipairs({'headers', 'bodies', 'meta'}) do
            local data = call('HGET', run .. part, seq)
            if data then call('HSET', aside, part .. ':' .. seq, data) end
        end
    end
end
local last = 0
for n = 0, count - 1 do
    local meta = get_meta(ARGV[17 + 6 * n])
    local place = meta and tonumber(meta.place) or 0
    if place <= last then place = last + 1 end
    places[ARGV[17 + 6 * n]] = text(place)
    last = place
end
forget()
if count == 0 then
    call('UNLINK', run .. 'head')
    move_run(old, nil)
    return {1, aside, changes}
end
local at = insert(17, count, places, hidden)
add_erased((ranges_at(at, gaps)))
local head = copy_of(old)
head.name, head.status, head.latest = ARGV[6], ARGV[7], ARGV[8]
head.checkpoints, head.stored, head.saved = ARGV[9], ARGV[10], ARGV[11]
head.seq, head.digest = ARGV[12], ARGV[13]
head.place = text(math.max(last, tonumber(old.place)))
put_head(head, old)
return {1, aside, changes}
""")

REINDEX = Script(r"""
local head = get_head()
if not head then return {0, changes} end
local first, last, count = tonumber(ARGV[4]), tonumber(ARGV[5]), 0
for _, seq in ipairs(first < last and call('HKEYS', run .. 'meta') or {}) do
    local meta = tonumber(seq) >= first and tonumber(seq) < last and get_meta(seq)
    if meta then
        list(seq, meta)
        count = count + 1
    end
end
move_run(nil, head)
return {count, changes}
""")

EXPECTED = Script(r"""
local head, wrong = get_head(), 0
together = false
if not head then return {0, changes} end
move_run(nil, head)
for _, seq in ipairs(call('HKEYS', run .. 'meta')) do
    local meta = get_meta(seq)
    if not meta then
        wrong = wrong + 1
    else
        mark('ZADD', idx .. 'ids', '0', by_id(seq, meta))
        if not meta.hidden then
            for _, key in ipairs(facets_of(meta)) do
                mark('ZADD', key, meta.place, seq .. ':' .. id)
            end
            if not call('ZSCORE', run .. meta.zone, seq) then wrong = wrong + 1 end
        end
    end
end
return {wrong, changes}
""")

SIZES = Script(r"""
local sizes = {call('ZCARD', idx .. 'runs')}
for at = 4, #ARGV do sizes[at - 2] = call('ZCARD', idx .. 'runs:s:' .. ARGV[at]) end
return sizes
""")

HOLDS = Script(
    r"""
local entries, given, holds = ARGV[4], ARGV[5], {}
local clock = given ~= '' and tonumber(given) or now() / 1000000
for at = 6, #ARGV, 2 do
    local run = ARGV[at]
    local lease = call('HMGET', run .. 'lease', 'epoch', 'owner', 'until')
    local entry = call('HGET', entries, ARGV[at + 1])
    local state = entry and string.match(entry, '"state":"(%a+)"')
    local hold = lease[1] and 'ended' or ''
    if lease[2] and lease[2] ~= '' and tonumber(lease[3]) > clock then
        hold = 'held'
    elseif state == 'ready' or state == 'waiting' or state == 'dead' then
        hold = state
    else
        local latest = call('HGET', run .. 'head', 'latest') or ''
        local header = latest ~= '' and call('HGET', run .. 'headers', latest)
        if header and string.find(header, '"""
    + SAVED_BY_HAND
    + r"""', 1, true) then hold = 'manager' end
    end
    holds[#holds + 1] = hold
end
return holds
"""
)

ANNOUNCE = Script(r"""
for at = 4, #ARGV do call('ZADD', run .. 'announced', text(now()), ARGV[at]) end
return 1
""")

ANNOUNCED = Script(r"""
return {text(now()), unpack(call('ZRANGE', run .. 'announced', 0, 999, 'WITHSCORES'))}
""")

TOUCH = Script(r"""
local seq = call('HGET', run .. 'head', 'seq')
if seq then call('HSET', run .. 'head', 'seq', seq) end
return 1
""")

HEAD = Script(r"""
local values = call('HMGET', run .. 'head', unpack(fields))
if not values[1] then return is_lost() and {'lost'} or {} end
values[#fields + 1] = call('HGET', run .. 'headers', values[2])
values[#fields + 2] = values[6] ~= '' and call('HGET', run .. 'headers', values[6])
local scoped = false
if ARGV[4] and ARGV[4] ~= '' then
    local newest = call('ZREVRANGE', idx .. 'f:' .. ARGV[4], 0, 0)[1]
    if newest then
        local seq = string.match(newest, '^(%d+):')
        scoped = {seq, call('HGET', run .. 'headers', seq)}
    end
end
values[#fields + 3] = scoped
return values
""")

READ = Script(r"""
local seq, last = tonumber(ARGV[4]), tonumber(ARGV[5])
local size, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local head = call('HGET', run .. 'head', 'seq')
if not head then return {} end
local stop = math.min(tonumber(head), last)
local ranges, found, bytes, nth = erased_ranges(), {}, 0, 1
while seq <= stop and #found < size and bytes < most do
    while ranges[nth] and ranges[nth][2] < seq do nth = nth + 1 end
    if ranges[nth] and ranges[nth][1] <= seq then
        seq = ranges[nth][2] + 1
    else
        local name = text(seq)
        local header = call('HGET', run .. 'headers', name)
        local body = call('HGET', run .. 'bodies', name)
        found[#found + 1] = {name, header, body}
        if not header then break end
        bytes = bytes + #header + (body and #body or 0)
        seq = seq + 1
    end
end
return {seq > stop and '' or text(seq), found}
""")

WALK = Script(r"""
local zones, bound, size, merged = ARGV[4], ARGV[5], tonumber(ARGV[6]), {}
for at = 1, #zones do
    local zone = string.sub(zones, at, at)
    local seqs = call('ZREVRANGEBYSCORE', run .. zone, '(' .. bound, '-inf', 'LIMIT', 0, size)
    for _, seq in ipairs(seqs) do merged[#merged + 1] = seq end
end
if #zones > 1 then table.sort(merged, function(a, b) return tonumber(a) > tonumber(b) end) end
local rows = {}
for at = 1, math.min(size, #merged) do
    rows[at] = {merged[at], call('HGET', run .. 'headers', merged[at])}
end
return rows
""")

ROWS = Script(r"""
local rows = {}
for at = 4, #ARGV do
    local meta = get_meta(ARGV[at])
    rows[at - 3] = meta and {meta.place, meta.zone, meta.hidden and '1' or '0',
        call('HGET', run .. 'headers', ARGV[at])} or ''
end
return rows
""")

SEALED = Script(r"""
local rows = {}
for at = 4, #ARGV do
    local header = call('HGET', run .. 'headers', ARGV[at])
    if header then rows[#rows + 1] = {ARGV[at], string.match(header, '^%x*')} end
end
return rows
""")

LEASE = Script(r"""
local lease = call('HMGET', run .. 'lease', 'epoch', 'owner', 'until', 'token')
if not lease[1] then return {} end
return {lease[1], lease[2], lease[3], lease[4], text(now())}
""")

TAKE_FREE = Script(r"""
-- `core/records/lease.py: taken`, but for holders that are known to be dead.
local token, owner, given, ahead, ttl, above = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local lease = call('HMGET', run .. 'lease', 'epoch', 'owner', 'until', 'token')
local clock = given ~= '' and tonumber(given) or now() / 1000000 + tonumber(ahead)
local epoch = math.max(tonumber(lease[1] or '0'), tonumber(above)) + 1
if lease[4] == token then
    epoch = tonumber(lease[1])
elseif lease[1] and lease[2] ~= '' and tonumber(lease[3]) > clock then
    return 0
end
call('HSET', run .. 'lease', 'epoch', text(epoch), 'owner', owner,
    'until', string.format('%.17g', clock + tonumber(ttl)), 'token', token)
return epoch
""")

TAKE = Script(r"""
local seen, token, epoch, owner, till, left = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local newest = call('HGET', run .. 'lease', 'token') or ''
if newest == token then
    call('HSET', run .. 'lease', 'token', token)
    return 1
end
if newest ~= seen then return 0 end
if till == '' then till = string.format('%.6f', (now() + tonumber(left) * 1000000) / 1000000) end
call('HSET', run .. 'lease', 'epoch', epoch, 'owner', owner, 'until', till, 'token', token)
return 1
""")
