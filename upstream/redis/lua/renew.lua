-- renew restarts the TTLs of leases. KEYS: queued, locks; before them fence, if any lease needs a
-- new base. ARGV: tokens, ttl (or ''); then, if there is fence, floor plus 1 and one letter for
-- each lease, 'b' (new base) or '-'; then ttls if they differ.
local KEYS, ARGV, pcall_, t = KEYS, ARGV, redis.pcall, nil
local bases = string.sub(KEYS[1], -5) == 'fence'
local K = bases and 2 or 1
local n = #KEYS - K
local T, ttl = bases and n + 3 or n + 1, ARGV[n + 1]
if ttl == '' then ttl = nil end
local v = pcall_('mget', unpack(KEYS))
if v.err then return {v.err} end
local from = 1
if not bases and not v[1] then -- no token queues; usually all are held exclusively, on Redis 7
	for i = 1, n do
		if v[i + 1] ~= ARGV[i] then break end
		local ok = pcall_('pexpire', KEYS[i + 1], ttl or ARGV[i + T], 'GT')
		if ok ~= 1 and ok ~= 0 then break end -- 0: it ends later already
		from = i + 1
	end
	if from > n then return 0 end
end
--@fast
local clock, out = nil, {0}

-- reader renews a shared lease. It returns 1, 0 if the lease is not held, or an error. Renewals
-- must work without free memory: the first write needs none, and Redis does not stop a script that
-- has written. A renewal never shortens a lease, because it can arrive after one with a longer TTL.
local function reader(i, ms)
	local key, token = KEYS[i + K], ARGV[i]
	local set = siblings .. 'readers:' .. key
	if not clock then
		local t = redis.call('time')
		clock = t[1] * 1000 + math.floor(t[2] / 1000)
	end
	local ends = redis.call('zscore', set, token)
	if not ends or tonumber(ends) <= clock then return 0 end
	local stands = redis.call('pttl', key)
	local ok = pcall_('pexpire', set, math.max(stands, ms) + 1000)
	if type(ok) == 'table' then return ok end
	if stands < ms then redis.call('pexpire', key, ms) end
	redis.call('zadd', set, string.format('%.0f', math.max(clock + ms, tonumber(ends))), token)
	return 1
end

local renewed, gt = {}, true
for i = from, n do
	local ms, ok = ttl or ARGV[i + T], 0
	if v[i + K] == ARGV[i] then
		if gt then -- since Redis 7; 0 means that it ends later already, because v has it
			ok = pcall_('pexpire', KEYS[i + K], ms, 'GT')
			gt = type(ok) == 'number'
			if gt then ok = 1 end
		end
		if not gt then
			ok = pcall_('pttl', KEYS[i + K])
			if type(ok) == 'number' then ok = pcall_('pexpire', KEYS[i + K], math.max(ok, tonumber(ms))) end
		end
	elseif v[i + K] == READERS then
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
--@rebase
local waits = v[K] and queues(K, n)
if not waits then return #out > 1 and out or out[1] end
--@slow
for i = 1, n do
	if waits[i] and renewed[i] then
		local ok, w = pcall(wanted, KEYS[i + K])
		if ok and w > 0 then add(out, i, DONE + w, 0) end
	end
end
return out
