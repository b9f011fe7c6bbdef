-- renew: restarts leases' TTLs.
-- KEYS: fence, queued, locks. ARGV: instance, siblings, floor, ttl (or ''), bases ('b' where one
-- is asked for, or ''), tokens, then ttls if they differ.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
if KEYS[4] == nil and ARGV[5] == '' then -- one lock, which mostly is held exclusively: see acquire
	local v = pcall_('mget', KEYS[2], KEYS[3])
	if not v.err and not v[1] and v[2] == ARGV[6] and type(pcall_('pexpire', KEYS[3], ARGV[4], 'GT')) == 'number' then return {0} end
end
--@fast
local n, T = #KEYS - 2, 5
local out = {0}
local v = pcall_('mget', unpack(KEYS))
if v.err then return {v.err} end
local ttl = ARGV[4] ~= '' and ARGV[4] or nil
local clock = nil

-- reader renews a shared lease. The first write needs no memory, and a script that has written
-- is not stopped for lack of it: renewing has to work then. It never shortens a lease: it may
-- come late, behind one that asked for more. 1, 0 when not held, or an error.
local function reader(i, ms)
	local key, token = KEYS[i + 2], ARGV[i + T]
	local set = ARGV[2] .. 'readers:' .. key
	if not clock then
		local t = redis.call('time')
		clock = t[1] * 1000 + math.floor(t[2] / 1000)
	end
	local ends = redis.call('zscore', set, token)
	if not ends then return 0 end
	local stands = redis.call('pttl', key)
	local ok = pcall_('pexpire', set, math.max(stands, ms) + 1000)
	if type(ok) == 'table' then return ok end
	if stands < ms then redis.call('pexpire', key, ms) end
	redis.call('zadd', set, string.format('%.0f', math.max(clock + ms, tonumber(ends))), token)
	return 1
end

local renewed, gt = {}, true
for i = 1, n do
	local ms, ok = ttl or ARGV[i + T + n], 0
	if v[i + 2] == ARGV[i + T] then
		if gt then -- Redis 7. 0 would be that it ends later: it stood there a moment ago
			ok = pcall_('pexpire', KEYS[i + 2], ms, 'GT')
			gt = type(ok) == 'number'
			if gt then ok = 1 end
		end
		if not gt then
			ok = pcall_('pttl', KEYS[i + 2])
			if type(ok) == 'number' then ok = pcall_('pexpire', KEYS[i + 2], math.max(ok, tonumber(ms))) end
		end
	elseif v[i + 2] == READERS then
		local done
		done, ok = pcall(reader, i, tonumber(ms))
		if not done then
			add(out, i, 0, type(ok) == 'table' and ok.err or tostring(ok))
			ok = nil
		end
	end
	if ok == 1 then
		renewed[i] = true
	elseif ok == 0 then
		add(out, i, NOTHELD, 0)
	elseif ok then
		refuse(out, i, ok.err)
	end
end
if ARGV[5] ~= '' then
	local r, err = reserve(n, tonumber(ARGV[3]))
	if r then out[1] = r[1] end
	for i = 1, n do
		if err and renewed[i] and string.sub(ARGV[5], i, i) == 'b' then
			add(out, i, 0, err)
			renewed[i] = nil
		end
	end
end
local waits = v[2] and queues(2, n)
if not waits then return out end
--@slow
for i = 1, n do
	if waits[i] and renewed[i] then
		local ok, w = pcall(wanted, KEYS[i + 2])
		if ok and w > 0 then add(out, i, DONE + w, 0) end
	end
end
return out
