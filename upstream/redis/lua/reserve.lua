-- This is the second part of making fence bases. It runs if the counter was ahead of base, ends
-- with a q or was not a number, or if Redis is older than 6.2. It replaces the value that the first
-- part wrote. That is safe, because Redis does not stop or refuse a script that has written.
-- Output: stands, if any queue of this slot may have entries; both, if the queue named by `only`
-- has entries too; or err.
local stands, both, err = false, false, t.err
if not sure and not err then
	if type(old) == 'table' then old = pcall_('get', fence) end
	if type(old) ~= 'string' then old = '' end
	local last = tonumber(string.match(old, '^%d+')) or 0
	base = math.max(base, last + 1)
	if old == '' or string.sub(old, -1) == 'q' then
		local queued = siblings .. 'queued'
		both = only and pcall_('exists', queued, only) == 2
		stands = both or pcall_('exists', queued) ~= 0
	end
	local text = string.format('%.0f', base + n - 1) .. (stands and 'q' or '')
	if base + n > 9007199254740991 then
		err = 'ERR fence bases are used up'
		text = old
	end
	local ok = pcall_('set', fence, text)
	err = err or ok.err
end
