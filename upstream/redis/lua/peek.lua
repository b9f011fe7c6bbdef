-- peek reports which locks are held. KEYS: locks.
local KEYS, ARGV, pcall_, t = KEYS, ARGV, redis.pcall, nil
--@fast
local out = {0}
--@slow
for i = 1, #KEYS do
	each(out, i, function()
		local v = redis.pcall('get', KEYS[i])
		if v == false then return nil end
		return BUSY + (v == READERS and SHARED or 0), left(KEYS[i])
	end)
end
return out
