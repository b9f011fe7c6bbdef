-- New bases for what has been renewed and asks for one. Takes bases, whether any does, n, out and renewed; where
-- none can be given, renewed has only the others afterwards.
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
