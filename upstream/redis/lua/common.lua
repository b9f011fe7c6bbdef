-- This part is for ops on locks and semaphores that the fast path did not complete. The queued
-- mark, <siblings>queued, exists while any token queues in the slot. While it may exist, the fence
-- counter ends with a q (base.lua).
local GRANTED, QUEUED, BUSY, DONE = 1, 2, 3, 4
local WANTED, SHARED = 16, 32
local me = string.match(ARGV[1] or '', '^[^.]*%.') or '' -- all tokens of this call begin with it
local dirty = false
t = t or redis.call('time')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function write(...)
	local r = redis.pcall(...)
	if type(r) == 'table' and r.err then error(r, 0) end
	dirty = true
	return r
end

-- each carries out one op, and adds to out what did not simply succeed. An error before the op's
-- first write makes the op refused. A later error makes it unknown.
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

-- last makes a key exist for at least ms more. If it must extend the key's TTL, the new TTL is
-- long, if given, so that some of the next calls need no extension.
local function last(key, ms, long)
	if redis.call('pttl', key) < ms then write('pexpire', key, long or ms) end
end

-- tell sends a hint to the daemon of the token member. In a cluster, a message published here would
-- go to all nodes, so the answer contains the hint and the caller publishes it.
local function tell(member, what, key)
	local instance = string.match(member, '^([%w_-]+)%.')
	if not instance then return end
	if CLUSTER then
		add(out, 0, 0, instance .. ' ' .. what .. key)
	else
		redis.pcall('publish', 'locksidecar:hint:' .. instance, what .. key)
	end
end

-- mark sets the queued mark for at least lease, and the q in the fence counter.
local function mark(lease)
	if redis.call('pttl', siblings .. 'queued') < lease then
		local last = redis.call('get', KEYS[1])
		if string.sub(last, -1) ~= 'q' then write('set', KEYS[1], last .. 'q') end
		write('set', siblings .. 'queued', '1', 'PX', 2 * lease)
	end
end
