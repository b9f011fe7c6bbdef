package cache

// chain is an intrusive list of a table's entries of one kind, in order of arrival. At most one scan at a
// time goes through it, in pieces. An entry that leaves the chain meanwhile moves the scan on.
type chain[E any] struct {
	of             func(*E) *links[E]
	oldest, newest *E
	at             *E   // where the scan continues; nil when it has ended
	back           bool // the scan goes from the newest to the oldest
}

type links[E any] struct{ older, newer *E }

func (c *chain[E]) add(e *E) {
	l := c.of(e)
	if l.older = c.newest; l.older != nil {
		c.of(l.older).newer = e
	} else {
		c.oldest = e
	}
	c.newest = e
}

func (c *chain[E]) remove(e *E) {
	l := c.of(e)
	if c.at == e {
		c.next()
	}
	if l.older != nil {
		c.of(l.older).newer = l.newer
	} else {
		c.oldest = l.newer
	}
	if l.newer != nil {
		c.of(l.newer).older = l.older
	} else {
		c.newest = l.older
	}
	*l = links[E]{}
}

// begin starts a scan at the oldest entry, or at the newest.
func (c *chain[E]) begin(newest bool) {
	c.at, c.back = c.oldest, newest
	if newest {
		c.at = c.newest
	}
}

// next moves the scan to the next entry.
func (c *chain[E]) next() {
	l := c.of(c.at)
	if c.back {
		c.at = l.older
	} else {
		c.at = l.newer
	}
}
