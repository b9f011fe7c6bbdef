-- This part is for ops on locks that the fast path did not complete. A lock has, besides its own
-- key,
--   queue:<key>    a sorted set of waiters ('x' or 's' and the token) by their places
--   waiters:<key>  the same waiters by the end of their queue entries, in ms of server time
--   readers:<key>  a sorted set of readers' tokens by the end of their leases, which counts only
--                  while the key's value is READERS (fast.lua)
local function queuekey(key) return siblings .. 'queue:' .. key end
local function waiters(key) return siblings .. 'waiters:' .. key end
local function readers(key) return siblings .. 'readers:' .. key end

local function number(v) return tonumber(string.sub(v, #me + 1), 36) or 0 end

-- value returns the string at key, false if there is no key, or 0 for a foreign lock of another
-- type.
local function value(key)
	local v = redis.pcall('get', key)
	if type(v) ~= 'table' then return v end
	if string.find(v.err, 'WRONGTYPE', 1, true) then return 0 end
	error(v, 0)
end

local function left(key) return redis.call('pttl', key) end

local function score(set, member)
	local s = redis.call('zscore', set, member)
	return s and tonumber(s) > now
end

-- lasting returns the TTL to set on a key with the value v. It does not shorten the present TTL,
-- because a request can arrive after a later one.
local function lasting(key, v, ttl) return v and math.max(left(key), ttl) or ttl end

-- bury removes the entries that have ended from key's queue.
local function bury(key)
	local dead = redis.call('zrangebyscore', waiters(key), '-inf', now)
	for at = 1, #dead, 1000 do
		local some = {unpack(dead, at, math.min(at + 999, #dead))}
		write('zrem', queuekey(key), unpack(some))
		write('zrem', waiters(key), unpack(some))
	end
end

-- queue returns the first entry of key's queue. Before, it removes entries at the head that have
-- ended or belong to an earlier token of ours.
local function queue(key, token)
	local q = {}
	while true do
		local head = redis.call('zrange', queuekey(key), 0, 0)[1]
		if not head then return q end
		q.mode, q.first = string.sub(head, 1, 1), string.sub(head, 2)
		local older = token and q.first ~= token and mine(q.first) and number(q.first) < number(token)
		if not older and score(waiters(key), head) then return q end
		write('zrem', queuekey(key), head)
		write('zrem', waiters(key), head)
		q = {}
	end
end

-- wake tells the waiters that can have key now: the first one, or all readers before the first
-- writer. v is the key's value. q is the queue, if it is known.
local function wake(key, v, q)
	q = q or queue(key)
	if not q.first or v and v ~= READERS then return end
	if q.mode == 'x' then
		if not v then tell(q.first, 'f', key) end
		return
	end
	bury(key)
	for _, w in ipairs(redis.call('zrange', queuekey(key), 0, 999)) do -- other waiters poll
		if string.sub(w, 1, 1) == 'x' then return end
		tell(string.sub(w, 2), 'f', key)
	end
end

-- wanted returns WANTED if any token queues for key, else 0.
local function wanted(key)
	if redis.call('zcount', waiters(key), '(' .. string.format('%.0f', now), '+inf') > 0 then return WANTED end
	return 0
end

-- leave removes a waiter from the queue. It returns whether the waiter was queued.
local function leave(key, member)
	if write('zrem', queuekey(key), member) == 0 then return false end
	write('zrem', waiters(key), member)
	return true
end

-- join puts a waiter at the end of key's queue, or keeps its place, and sends the hint what to the
-- holders. If key is free, q is its queue. place is a fence base, so it is larger than the places
-- of all earlier waiters.
local function join(key, member, v, q, lease, what, place)
	local news = write('zadd', queuekey(key), 'NX', string.format('%.0f', place), member) == 1
	write('zadd', waiters(key), string.format('%.0f', now + lease), member)
	last(queuekey(key), lease, 2 * lease)
	last(waiters(key), lease, 2 * lease)
	mark(lease)
	if not v then
		wake(key, v, q) -- the waiter before us may have missed its hint
	elseif news or queue(key, string.sub(member, 2)).first == string.sub(member, 2) then
		if v == READERS then
			for _, r in ipairs(redis.call('zrangebyscore', readers(key), '(' .. string.format('%.0f', now), '+inf')) do
				tell(r, what, key)
			end
		elseif v ~= 0 then
			tell(v, what, key)
		end
	end
end

-- writer reports whether a writer queues for key, before member if member is queued.
local function writer(key, q, member)
	if not q.first then return false end
	local stop = -1
	local rank = member and redis.call('zrank', queuekey(key), member)
	if rank == 0 then return false end
	if rank then stop = rank - 1 end
	for _, w in ipairs(redis.call('zrange', queuekey(key), 0, stop)) do
		if string.sub(w, 1, 1) == 'x' then return true end
	end
	return false
end

-- shrink adapts the lock after readers have left. The lock ends with the last of them. It returns
-- the key's new value.
local function shrink(key)
	local set = readers(key)
	write('zremrangebyscore', set, '-inf', now)
	local longest = redis.call('zrange', set, -1, -1, 'withscores')
	if longest[2] then
		write('pexpireat', key, longest[2])
	else
		write('del', key, set)
	end
	return longest[2] and READERS or false
end

-- older removes our shared leases with earlier tokens, whose release is pending. It returns whether
-- there were any.
local function older(key, token)
	local found = false
	for _, r in ipairs(redis.call('zrange', readers(key), 0, -1)) do
		if mine(r) and number(r) < number(token) then
			write('zrem', readers(key), r)
			found = true
		end
	end
	return found
end

-- without removes our shared leases with earlier tokens and returns the key's new value.
local function without(key, token)
	if not older(key, token) then return READERS end
	return shrink(key)
end

-- read gives token a shared lease. v is the key's value. If there are readers already, the first
-- write needs no memory (see renew).
local function read(key, token, ttl, v)
	local set, stands, ends = readers(key), 0, now + ttl
	if v == READERS then
		stands = redis.call('pttl', key)
		ends = math.max(ends, tonumber(redis.call('zscore', set, token) or 0)) -- as in lasting
		write('pexpire', set, math.max(stands, ttl) + 1000)
		if stands < ttl then write('pexpire', key, ttl) end
	else
		write('set', key, READERS, 'PX', ttl)
	end
	write('zadd', set, string.format('%.0f', ends), token)
	if v ~= READERS or redis.call('pttl', set) < 0 then -- older may have removed the only reader
		write('pexpire', set, math.max(stands, ttl) + 1000)
	end
end
