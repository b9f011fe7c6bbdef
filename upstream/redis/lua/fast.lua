-- What every script begins with. An answer is {base, index, code, extra, index, code, extra, …}:
-- the base of the first op (the others count on from it), and then only those ops that did not
-- simply succeed. Index 0 is for somebody else: its extra is an instance, a space and the hint
-- for it. {message} means that nothing at all was done.
local NOTHELD, REFUSED = 5, 6 -- these, and those in the second part, are cache's
local CLUSTER = ARGV[2] ~= 'locksidecar:{}:'
local READERS = 'locksidecar:readers' -- a lock's value while readers hold it

local function add(out, i, code, extra)
	local n = #out
	out[n + 1], out[n + 2], out[n + 3] = i, code, extra
end

local function refuse(out, i, err) add(out, i, REFUSED, err) end

-- reserve sets n fence bases aside: larger than every earlier one, than the floor, and than the
-- clock in µs, so that they rise even when the counter was lost. In a cluster there is a counter a
-- slot, and each ends a day after its base, whatever the clock does meanwhile; then KEYS[2] is
-- read in the same go, and the second result says whether it stands.
local function reserve(n, floor)
	local last = CLUSTER and redis.pcall('mget', KEYS[1], KEYS[2]) or redis.pcall('mget', KEYS[1])
	if last.err then return nil, last.err end
	local t = redis.pcall('time')
	if t.err then return nil, t.err end
	local clock = t[1] * 1000000 + t[2]
	local base = math.max((tonumber(last[1] or 0) or 0) + 1, floor + 1, clock)
	if base + n > 9007199254740991 then return nil, 'ERR fence bases are used up' end
	local ok
	local text = string.format('%.0f', base + n - 1)
	if not CLUSTER then
		ok = redis.pcall('set', KEYS[1], text)
	elseif base == clock then
		ok = redis.pcall('set', KEYS[1], text, 'EX', '86400')
	else
		ok = redis.pcall('set', KEYS[1], text, 'PXAT', string.format('%.0f', math.floor(base / 1000) + 86400000))
	end
	if ok.err then return nil, ok.err end
	return {base}, last[2]
end

-- queues says for which locks somebody queues, if for any. KEYS[at] stands while anybody queues
-- for anything here, so that mostly one EXISTS is all it takes, or none when it is known.
local function queues(at, n, stands)
	if stands == nil then stands = redis.pcall('exists', KEYS[at]) ~= 0 end
	if not stands then return nil end
	local names, found = {}, {}
	for i = 1, n do names[i] = ARGV[2] .. 'queue:' .. KEYS[at + i] end
	if redis.pcall('exists', unpack(names)) == 0 then return nil end
	for i = 1, n do found[i] = redis.pcall('exists', names[i]) ~= 0 end
	return found
end
