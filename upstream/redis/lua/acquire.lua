-- acquire carries out tries and joins for exclusive leases. KEYS: fence, locks. ARGV: tokens, ttl
-- (or ''), floor plus 1; kinds; ttls if they differ. kinds is the lease of a waiter in ms and one
-- letter for each op: 't' (try), 'b' (short-lived queue entry) or 'j' (join). It is left out if all
-- ops join, with a lease of 3 s and the same ttl.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
local n = #KEYS - 1
local ttl, least, T = ARGV[n + 1], ARGV[n + 2], n + 3
if ttl == '' then ttl = nil end
local fence = KEYS[1]
--@base
-- Usually all locks are free.
local from = 1
if sure then
	for i = 1, n do
		local ok = pcall_('set', KEYS[i + 1], ARGV[i], 'NX', 'PX', ttl or ARGV[i + T])
		if not ok or ok.err then break end
		from = i + 1
	end
	if from > n then return base end
end
--@fast
if n == 1 then only = siblings .. 'queue:' .. KEYS[2] end
--@reserve
if err then return {err} end
local waits = both and {true} or stands and queues(1, n)
local out, later = {base}, nil
for i = from, n do
	local ok
	if not (waits and waits[i]) then
		ok = pcall_('set', KEYS[i + 1], ARGV[i], 'NX', 'PX', ttl or ARGV[i + T])
	end
	if not ok then
		later = later or {}
		later[#later + 1] = i
	elseif ok.err then
		refuse(out, i, ok.err)
	end
end
if not later then return out end
--@slow
local lease, kinds = string.match(ARGV[T] or '3000', '^(%d+)(%a*)')
for _, i in ipairs(later) do
	local key, token = KEYS[i + 1], ARGV[i]
	local kind = string.sub(kinds, i, i)
	each(out, i, function()
		local v = value(key)
		if v and mine(v) and v ~= token then
			if number(v) > number(token) then return BUSY, left(key) end -- a later token of ours has it
			write('del', key) -- a pending release of ours; the daemon has a new token
			v = false
		elseif v == READERS then
			if score(readers(key), token) then return kind == 't' and BUSY or QUEUED, left(key) end -- shared
			v = without(key, token)
		end
		local queued = waits and waits[i]
		-- In other cases join reads the queue, if it must.
		local q = queued and (not v or kind == 't') and queue(key, token) or {}
		if v == token or not v and (q.first == nil or q.first == token and q.mode == 'x') then
			write('set', key, token, 'PX', lasting(key, v, tonumber(ttl or ARGV[i + T])))
			if not queued then return nil end
			leave(key, 'x' .. token)
			return GRANTED + wanted(key), 0
		end
		if kind == 't' then
			if queued then
				leave(key, 'x' .. token)
				if not v then wake(key, v) end
			end
			return BUSY + (q.first and WANTED or 0), left(key)
		end
		join(key, 'x' .. token, v, q, tonumber(lease), kind == 'b' and 't' or 'w', base + i - 1)
		return QUEUED, left(key)
	end)
end
return out
