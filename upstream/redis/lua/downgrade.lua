-- downgrade: makes exclusive leases shared ones.
-- KEYS: queued, locks. ARGV: instance, siblings, ttl (or ''), tokens, then ttls if they differ.
local n, T = #KEYS - 1, 3
local out = {0}
--@slow
for i = 1, n do
	local key, token = KEYS[i + 1], ARGV[i + T]
	local ttl = tonumber(ARGV[3]) or tonumber(ARGV[i + T + n])
	each(out, i, function()
		local v = value(key)
		if v == token then
			write('del', readers(key)) -- of an earlier time; and now this script has written
			read(key, token, lasting(key, v, ttl), false)
			wake(key)
		elseif v == READERS and score(readers(key), token) then
			read(key, token, ttl, v)
		else
			return NOTHELD, 0
		end
		return DONE + wanted(key), 0
	end)
end
return out
