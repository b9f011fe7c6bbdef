package faulty

// acquireMany acquires all keys or none.
func (c *Client) acquireMany(keys []string, owner uint64, wait int64) ([]uint64, error) {
	cn, err := c.connect()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]any, len(keys))
	for i, k := range keys {
		list[i] = k
		if err := c.refused(keyOwner{k, owner}); err != nil {
			return nil, err
		}
	}
	fences := make([]uint64, len(keys))
	cl, err := cn.send(8, &call{take: func(f *fields) error {
		gs := f.array()
		if len(gs) != len(keys) && !(c.fault.is("takes-too-few-grants") && len(gs) < len(keys)) {
			return errBad
		}
		for i := range gs {
			at := i
			if c.fault.is("mixes-grants-up") {
				at = len(gs) - 1 - i
			}
			one, _ := gs[at].([]any)
			g, err := readGrant(&fields{vs: one, fault: f.fault})
			if err != nil {
				return err
			}
			c.take(cn, name{keys[i], owner, 0}, false, false, &g)
			fences[i] = g.fence
		}
		return f.done()
	}}, list, owner, 0, wait, 0, 0)
	if err != nil {
		return nil, err
	}
	c.mu.Unlock()
	err = <-cl.done
	c.mu.Lock()
	if err != nil && c.fault.is("takes-a-refused-many-for-granted") {
		return fences, nil
	}
	return fences, err
}

// releaseMany releases one count of each key.
func (c *Client) releaseMany(keys []string, owner uint64, fences []uint64) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := make([]string, len(keys))
	var hs []*hold
	var at []int
	var pairs []any
	for i, k := range keys {
		h := c.find(name{k, owner, fences[i]})
		if said[i] = "not_held"; h == nil {
			continue
		}
		if h.lapse(); h.lost != "" {
			_ = c.letGoLost(h)
			continue
		}
		if h.count--; h.count == 0 {
			h.releases++
		}
		hs, at, pairs = append(hs, h), append(at, i), append(pairs, []any{k, fences[i]})
	}
	if len(hs) == 0 {
		return said, nil
	}
	cl, err := hs[0].c.send(9, &call{take: func(f *fields) error {
		cs := f.array()
		if len(cs) != len(hs) && !c.fault.is("takes-too-few-codes") {
			return errBad
		}
		inner := fields{vs: cs, fault: f.fault}
		for i := range min(len(cs), len(hs)) {
			code := inner.num()
			if code > 255 {
				return errBad
			}
			said[at[i]] = named(codes[:], "code_", code)
			hs[i].over = hs[i].count == 0
		}
		if inner.err != nil {
			return inner.err
		}
		return f.done()
	}}, pairs, owner, 0)
	if err != nil {
		return nil, err
	}
	c.mu.Unlock()
	err = <-cl.done
	c.mu.Lock()
	return said, err
}
