-- permitmoving renews or releases one permit in a slot that is moving to another node. The set of
-- the semaphore's permits is at one of the nodes as a whole. The script makes no key. KEYS: set.
-- ARGV: token, 'renew' or 'release', ttl.
local KEYS, ARGV, pcall_ = KEYS, ARGV, redis.pcall
--@fast
local set, token, ms, out = KEYS[1], ARGV[1], tonumber(ARGV[3]), {0}
local t, ends = redis.call('time'), pcall_('zscore', set, token)
local clock = t[1] * 1000 + math.floor(t[2] / 1000)
local held, ok = type(ends) == 'string' and tonumber(ends) > clock, nil
if type(ends) == 'table' then
	refuse(out, 1, ends.err)
elseif ARGV[2] == 'release' then
	if held then ok = pcall_('zrem', set, token) else refuse(out, 1, 'TRYAGAIN the slot of the semaphore is moving') end
elseif not held then
	add(out, 1, NOTHELD, 0)
else
	ok = pcall_('pttl', set)
	if type(ok) == 'number' then ok = pcall_('pexpire', set, math.max(ok, ms + 1000)) end
	if type(ok) == 'number' then redis.call('zadd', set, string.format('%.0f', math.max(clock + ms, tonumber(ends))), token) end
end
if type(ok) == 'table' then refuse(out, 1, ok.err) end
return out
