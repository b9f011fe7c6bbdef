package faulty

// acquireAny acquires one of the keys, and returns it with its fence.
func (c *Client) acquireAny(keys []string, owner uint64, wait int64, giveUp func(func())) (
	key string, fence uint64, err error,
) {
	cn, err := c.connect()
	if err != nil {
		return "", 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]any, len(keys))
	for i, k := range keys {
		list[i] = k
		c.awaitCancel(cn, keyOwner{k, owner})
		if err := c.refused(keyOwner{k, owner}); err != nil {
			return "", 0, err
		}
	}
	given := false
	cl := &call{take: func(f *fields) error {
		g, err := readGrant(f)
		if err != nil {
			return err
		}
		index := f.num()
		if f.err != nil {
			return f.err
		}
		if index >= uint64(len(keys)) {
			if !c.fault.is("takes-any-index") {
				return errBad
			}
			index = 0
		}
		if c.fault.is("takes-the-first-key") {
			index = 0
		}
		key, fence = keys[index], g.fence
		switch {
		case given && c.fault.is("forgets-one-of-several"):
		case given:
			_, err = cn.send(3, nil, key, owner, g.fence, 0)
		default:
			c.take(cn, name{key, owner, 0}, false, false, &g)
		}
		if err != nil {
			return err
		}
		return f.done()
	}}
	if cl, err = cn.send(13, cl, list, owner, 0, wait, 0, 0); err != nil {
		return "", 0, err
	}
	id, done := cn.lastID, cl.done
	giveUp(func() { given = c.withdraw(cn, keyOwner{keys[0], owner}, id, cl) })
	c.mu.Unlock()
	err = <-done
	c.mu.Lock()
	return key, fence, err
}
