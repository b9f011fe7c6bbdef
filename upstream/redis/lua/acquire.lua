-- acquire: exclusive leases, tried or queued for.
-- KEYS: fence, queued, locks. ARGV: instance, siblings, floor, ttl (or ''), lease of a waiter,
-- kinds ('t' or 'j' each), tokens, then ttls if they differ.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
if KEYS[4] == nil and ARGV[2] ~= 'locksidecar:{}:' then
	-- One lock of a cluster's slot, which mostly is free: no more commands than that takes, and no
	-- functions made. Whatever is not as it mostly is, what follows does from the start.
	local last, t = pcall_('mget', KEYS[1], KEYS[2]), pcall_('time')
	if not last.err and not t.err and not last[2] then
		local clock = t[1] * 1000000 + t[2]
		if clock > (tonumber(last[1] or 0) or clock) and clock > tonumber(ARGV[3]) then
			local ok = pcall_('set', KEYS[1], string.format('%.0f', clock), 'EX', '86400')
			if not ok.err then
				ok = pcall_('set', KEYS[3], ARGV[7], 'NX', 'PX', ARGV[4])
				if ok and not ok.err then return {clock} end
			end
		end
	end
end
--@fast
local n, T = #KEYS - 2, 6
local out, stands = reserve(n, tonumber(ARGV[3]))
if not out then return {stands} end
local ttl = ARGV[4]
if ttl == '' then ttl = nil end
local waits = queues(2, n, stands)
local later = nil
for i = 1, n do
	local ok
	if not (waits and waits[i]) then
		ok = pcall_('set', KEYS[i + 2], ARGV[i + T], 'NX', 'PX', ttl or ARGV[i + T + n])
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
for _, i in ipairs(later) do
	local key, token = KEYS[i + 2], ARGV[i + T]
	each(out, i, function()
		local v = value(key)
		if v and mine(v) and v ~= token then
			if number(v) > number(token) then return BUSY, left(key) end -- we are the late one
			write('del', key) -- a debt of ours; the daemon has gone on
			v = false
		elseif v == READERS then
			v = without(key, token)
		end
		local queued = waits and waits[i]
		local q = queued and queue(key, token) or {}
		if v == token or not v and (q.first == nil or q.first == token and q.mode == 'x') then
			write('set', key, token, 'PX', lasting(key, v, tonumber(ttl or ARGV[i + T + n])))
			if not queued then return nil end
			leave(key, 'x' .. token)
			return GRANTED + wanted(key), 0
		end
		if string.sub(ARGV[6], i, i) == 't' then
			if queued then
				leave(key, 'x' .. token)
				if not v then wake(key) end
			end
			return BUSY + (q.first and WANTED or 0), left(key)
		end
		join(key, 'x' .. token, v, q)
		return QUEUED, left(key)
	end)
end
return out
