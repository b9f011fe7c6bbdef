-- moving renews or releases one lock in a slot that is moving to another node. Its siblings may be
-- there already. So the script changes only what the lock's own key proves, and makes no key.
-- KEYS: lock. ARGV: token, 'renew' or 'release', ttl, siblings.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
--@fast
local key, token, ms = KEYS[1], ARGV[1], tonumber(ARGV[3])
local out = {0}
local UNSURE = 'TRYAGAIN the slot of the lock is moving'
local v = redis.pcall('get', key)
if ARGV[2] == 'release' then
	if v ~= token then
		refuse(out, 1, UNSURE)
	else
		local ok = redis.pcall('del', key)
		if type(ok) == 'table' then refuse(out, 1, ok.err) end
	end
	return out
end
if v == token then
	local ok = redis.pcall('pttl', key)
	if type(ok) == 'number' then ok = redis.pcall('pexpire', key, math.max(ok, ms)) end
	if type(ok) == 'table' then refuse(out, 1, ok.err) end
elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
	refuse(out, 1, v.err)
elseif v ~= READERS then
	add(out, 1, NOTHELD, 0)
else
	local set = ARGV[4] .. 'readers:' .. key
	local ends = redis.pcall('zscore', set, token)
	if type(ends) ~= 'string' then -- the set may be on the other node
		refuse(out, 1, UNSURE)
		return out
	end
	local t = redis.call('time')
	local now = t[1] * 1000 + math.floor(t[2] / 1000)
	if tonumber(ends) <= now then
		add(out, 1, NOTHELD, 0)
		return out
	end
	local stands = redis.call('pttl', key)
	local ok = redis.pcall('pexpire', set, math.max(stands, ms) + 1000)
	if type(ok) == 'table' then
		refuse(out, 1, ok.err)
		return out
	end
	if stands < ms then redis.call('pexpire', key, ms) end
	redis.call('zadd', set, string.format('%.0f', math.max(now + ms, tonumber(ends))), token)
end
return out
