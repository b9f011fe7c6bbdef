-- permit carries out tries and joins for permits. KEYS: fence, the set of each permit's semaphore.
-- ARGV: tokens, ttl (or ''), floor plus 1, limit (or ''); kinds; ttls if they differ; limits if
-- they differ. kinds is the lease of a waiter in ms and one letter for each op: 't' (try) or 'j'
-- (join).
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
local n = #KEYS - 1
local ttl, least, limit, T = tonumber(ARGV[n + 1]), ARGV[n + 2], tonumber(ARGV[n + 3]), n + 4
local L = ttl and T or T + n
local fence = KEYS[1]
--@base
--@fast
--@reserve
if err then return {err} end
--@semqueues
-- Usually no token queues, no token of the call has a permit yet, and there are enough permits even
-- if no entry of the set has ended. After the first op for which that is not true, odd excludes the
-- later ops of the same semaphore.
local waits = stands and semqueues(1)
local out, later, odd = {base}, nil, {}
local clock, set, held, lasts = t[1] * 1000 + math.floor(t[2] / 1000), nil, 0, 0
for i = 1, n do
	local ms, ok = ttl or tonumber(ARGV[i + T]), nil
	if KEYS[i + 1] ~= set then
		set, lasts = KEYS[i + 1], 0
		if waits and waits[set] then odd[set] = true end
		held = odd[set] or pcall_('zcard', set)
	end
	if type(held) == 'number' and held < (limit or tonumber(ARGV[i + L])) then
		ok = pcall_('zadd', set, 'NX', string.format('%.0f', clock + ms), ARGV[i])
	end
	if ok ~= 1 then
		held, odd[set], later = true, true, later or {}
		later[#later + 1] = i
	else
		if ms > lasts then
			ok = held > 0 and pcall_('pexpire', set, ms + 1000, 'GT') -- Redis 7
			if type(ok) ~= 'number' and (held == 0 or pcall_('pttl', set) < ms + 1000) then pcall_('pexpire', set, ms + 1000) end
			lasts = ms
		end
		held = held + 1
	end
end
if not later then return base end
--@semaphore
local lease, kinds = string.match(ARGV[T], '^(%d+)(%a*)')
for _, i in ipairs(later) do
	local token, most = ARGV[i], limit or tonumber(ARGV[i + L])
	each(out, i, function()
		local s = see(KEYS[i + 1])
		local ends = redis.call('zscore', s.set, token)
		local at = s.waiting > 0 and redis.call('zrank', s.queue, token) -- the waiters before it
		if ends or s.held + (at or s.waiting) < most then
			hold(s, token, ttl or tonumber(ARGV[i + T]), ends)
			if at then
				unqueue(s, token)
				s.freed = s.freed - 1 -- tokens behind it have gained no permit
			end
			local w = wanted(s)
			if w == 0 then return nil end
			return GRANTED + w, 0
		end
		if string.sub(kinds, i, i) == 't' then
			if at then unqueue(s, token) end
			return BUSY + wanted(s), left(s)
		end
		join(s, token, not at, tonumber(lease), most)
		return QUEUED + wanted(s), left(s)
	end)
end
wakeall()
return out
