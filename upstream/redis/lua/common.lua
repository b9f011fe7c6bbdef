-- What only ops need that did not simply succeed, of locks and of semaphores alike. Beside their
-- own siblings there is <siblings>queued, which stands while anybody queues for anything;
-- reserve.lua says how the counter of fences shows that.
local GRANTED, QUEUED, BUSY, DONE = 1, 2, 3, 4
local WANTED, SHARED = 16, 32
local me = string.match(ARGV[1] or '', '^[^.]*%.') or '' -- instance and dot, of all tokens here
local dirty = false
t = t or redis.call('time')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function write(...)
	local r = redis.pcall(...)
	if type(r) == 'table' and r.err then error(r, 0) end
	dirty = true
	return r
end

-- each does one op, whatever happens to it: an error before it has written anything refuses it,
-- a later one leaves it unknown.
local function each(out, i, op)
	dirty = false
	local ok, code, extra = pcall(op)
	if ok then
		if code then add(out, i, code, extra) end
		return
	end
	if type(code) == 'table' then code = code.err end
	add(out, i, dirty and 0 or REFUSED, tostring(code))
end

local function mine(v) return string.sub(v, 1, #me) == me end

-- last makes a key end no sooner than in ms; in long, where that spares some of the next from doing
-- the same.
local function last(key, ms, long)
	if redis.call('pttl', key) < ms then write('pexpire', key, long or ms) end
end

-- tell gives a hint to a token's daemon. In a cluster publishing here would go to all nodes: the
-- caller does it.
local function tell(member, what, key)
	local instance = string.match(member, '^([%w_-]+)%.')
	if not instance then return end
	if CLUSTER then
		add(out, 0, 0, instance .. ' ' .. what .. key)
	else
		redis.pcall('publish', 'locksidecar:hint:' .. instance, what .. key)
	end
end

-- mark says that somebody queues here for as long as lease.
local function mark(lease)
	if redis.call('pttl', siblings .. 'queued') < lease then
		local last = redis.call('get', KEYS[1])
		if string.sub(last, -1) ~= 'q' then write('set', KEYS[1], last .. 'q') end
		write('set', siblings .. 'queued', '1', 'PX', 2 * lease)
	end
end
