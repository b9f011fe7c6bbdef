-- downgrade turns exclusive leases into shared ones.
-- KEYS: queued, locks. ARGV: tokens, ttl (or ''), then ttls if they differ.
local KEYS, ARGV, pcall_, t = KEYS, ARGV, redis.pcall, nil
--@fast
local n = #KEYS - 1
local out = {0}
--@slow
for i = 1, n do
	local key, token = KEYS[i + 1], ARGV[i]
	local ttl = tonumber(ARGV[n + 1]) or tonumber(ARGV[n + 1 + i])
	each(out, i, function()
		local v = value(key)
		if v == token then
			-- This removes readers of an earlier time. It is also a first write, which needs no memory
			-- (see renew).
			write('del', readers(key))
			read(key, token, lasting(key, v, ttl), false)
			wake(key, READERS)
		elseif v == READERS and score(readers(key), token) then
			read(key, token, ttl, v)
		else
			return NOTHELD, 0
		end
		return DONE + wanted(key), 0
	end)
end
return out
