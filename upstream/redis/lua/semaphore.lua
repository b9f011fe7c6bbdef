-- This part is for ops on permits that the fast path did not complete. A semaphore has a set of its
-- held permits: tokens by the end of their leases. While any token queues for it, it also has
--   permitqueue:<key>    a sorted set of the waiting tokens by their places, which are multiples of
--                        PLACE; the remainder is the limit of permits that the token named
--   permitwaiters:<key>  the same tokens by the end of their queue entries, in ms of server time
--   permithosts:<key>    the same tokens in the order of their names, and so by instance
-- A token may have a permit if the held permits and the tokens before it in the queue are together
-- fewer than the limit that it named. All tokens of a call have one instance.
local PLACE = 16384
local MOST = 100 -- hints of one call for one semaphore; other waiters poll, and other holders renew
local sems, marked = {}, false

-- drop is write for commands that remove members. It returns their number.
local function drop(...)
	local r = redis.pcall(...)
	if type(r) == 'table' then error(r, 0) end
	if r > 0 then dirty = true end
	return r
end

-- unqueue removes tokens from the queue.
local function unqueue(s, ...)
	local n = drop('zrem', s.queue, ...)
	s.freed, s.waiting, s.head, s.lasts = s.freed + n, s.waiting - n, nil, nil
	drop('zrem', s.hosts, ...)
	drop('zrem', s.waiters, ...)
end

-- see returns the state of the semaphore with this set. The first call for a semaphore removes the
-- permits and queue entries that have ended, and counts the others. freed is the number of further
-- tokens that may have a permit and have not been told.
local function see(set)
	local s = sems[set]
	if s then return s end
	local key = string.sub(set, #siblings + 9)
	s = {set = set, key = key, queue = siblings .. 'permitqueue:' .. key, waiters = siblings .. 'permitwaiters:' .. key,
		hosts = siblings .. 'permithosts:' .. key, waiting = 0}
	s.freed = drop('zremrangebyscore', set, '-inf', now)
	s.held = redis.call('zcard', set)
	if waits and waits[set] then
		s.waiting = redis.call('zcard', s.queue)
		local dead = redis.call('zrangebyscore', s.waiters, '-inf', now)
		for at = 1, #dead, 1000 do unqueue(s, unpack(dead, at, math.min(at + 999, #dead))) end
		if s.waiting > redis.call('zcard', s.waiters) then -- another client deleted some
			for _, w in ipairs(redis.call('zrange', s.queue, 0, -1)) do
				if not redis.call('zscore', s.waiters, w) then unqueue(s, w) end
			end
		end
	end
	sems[set] = s
	return s
end

-- left returns the time until the first held permit ends, in ms, or -1.
local function left(s)
	if not s.left then
		local first = redis.call('zrange', s.set, 0, 0, 'withscores')
		s.left = first[2] and first[2] - now or -1
	end
	return s.left
end

-- head returns the first token in the queue and the limit of permits that it named.
local function head(s)
	if not s.head then
		local first = redis.call('zrange', s.queue, 0, 0, 'withscores')
		s.head = {first[1], (tonumber(first[2] or 0) or 0) % PLACE}
	end
	return s.head[1], s.head[2]
end

-- free returns how many more tokens may have a permit.
local function free(s)
	local _, limit = head(s)
	return limit - s.held
end

-- hold gives token a permit. If the token has one that ends at ends, it only extends that.
local function hold(s, token, ms, ends)
	write('zadd', s.set, string.format('%.0f', math.max(now + ms, tonumber(ends or 0))), token)
	if not ends then s.held = s.held + 1 end
	s.left = nil
	last(s.set, ms + 1000)
end

-- wanted returns WANTED if a token of another instance queues and cannot have a permit now, else 0.
local function wanted(s)
	if s.waiting == 0 then return 0 end
	if not s.others then
		s.others = s.waiting - redis.call('zlexcount', s.hosts, '[' .. me, '(' .. string.sub(me, 1, -2) .. '/')
	end
	if s.others <= 0 then return 0 end
	local n, others = free(s), s.others
	if n >= s.waiting or n > MOST then return 0 end
	if n > 0 then
		for _, w in ipairs(redis.call('zrange', s.queue, 0, n - 1)) do
			if not mine(w) then others = others - 1 end
		end
	end
	return others > 0 and WANTED or 0
end

-- wake tells the queued tokens that can have a permit now and could not before.
local function wake(s)
	if s.freed <= 0 or s.waiting <= 0 then return end
	local n = free(s)
	local from = math.max(0, n - s.freed)
	local to = math.min(n, from + MOST) - 1
	if to < from then return end
	for _, w in ipairs(redis.call('zrange', s.queue, from, to)) do
		tell(w, 'F' .. string.sub(string.match(w, '%.%w*$') or '.', 2) .. ' ', s.key)
	end
end

local function wakeall()
	for _, s in pairs(sems) do pcall(wake, s) end
end

-- ask makes the holders learn that a token of ours waits. If the token is first in the queue, each
-- of its joins tells all other hosts that a bounded check finds. If it is behind another host's
-- token, it tells that host once, because nobody else has told it of a waiter besides its own.
local function ask(s, token, news)
	local first = head(s)
	if first ~= token then
		if news and first and not mine(first) and not s.told then
			tell(first, 'W', s.key)
			s.told = true
		end
		return
	end
	local some, told = redis.pcall('zrandmember', s.set, MOST), {}
	if some.err then some = redis.call('zrange', s.set, 0, MOST - 1) end -- Redis before 6.2
	for _, h in ipairs(some) do
		local host = string.match(h, '^[^.]*')
		if not mine(h) and not told[host] then tell(h, 'W', s.key) end
		told[host] = true
	end
end

-- enqueue puts token at the end of the queue. If it is there already, enqueue updates its limit.
local function enqueue(s, token, news, limit)
	local most = math.min(limit, PLACE - 1)
	if news then
		if not s.tail then
			local tail = tonumber(redis.call('zrange', s.queue, -1, -1, 'withscores')[2] or 0) or 0
			s.tail = tail - tail % PLACE
		end
		s.tail = s.tail + PLACE
		write('zadd', s.queue, string.format('%.0f', s.tail + most), token)
		write('zadd', s.hosts, 0, token)
		if s.waiting == 0 then s.head = nil end
		s.waiting = s.waiting + 1
		return
	end
	local place = tonumber(redis.call('zscore', s.queue, token)) or 0
	if place % PLACE == most then return end
	write('zadd', s.queue, string.format('%.0f', place - place % PLACE + most), token)
	s.head = nil
end

-- join queues token, or keeps its place, and sends the hints that follow.
local function join(s, token, news, lease, limit)
	enqueue(s, token, news, limit)
	write('zadd', s.waiters, string.format('%.0f', now + lease), token)
	if not s.lasts then
		last(s.queue, lease)
		last(s.hosts, lease)
		last(s.waiters, lease + 1000) -- longer than queue, because each queued token must be in waiters
		s.lasts = true
	end
	if not marked then mark(lease) end
	marked = true
	if s.held < limit then
		s.freed = s.freed + limit -- the tokens before us may have missed their hints
	else
		ask(s, token, news)
	end
end
