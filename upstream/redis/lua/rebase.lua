-- This part gives new bases to the renewed leases that need one. Input: bases (whether any lease
-- needs one), n, out and renewed. If no bases can be given, renewed keeps only the leases that need
-- none.
if bases then
	local fence, least = KEYS[1], ARGV[n + 2]
--@base
--@reserve
	if not err then out[1] = base end
	for i = 1, n do
		if err and renewed[i] and string.sub(ARGV[n + 3], i, i) == 'b' then
			add(out, i, 0, err)
			renewed[i] = nil
		end
	end
end
