package cache

// chain is what a table has of a kind, in the order in which it came: entries that carry
// their links themselves. One look at a time may go through it in pieces, and whatever
// leaves the chain meanwhile moves that look on.
type chain[E any] struct {
	of             func(*E) *links[E]
	oldest, newest *E
	at             *E   // where the look goes on; nil when it is through
	back           bool // it goes from the newest to the oldest
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

// begin puts the look at the oldest, or at the newest.
func (c *chain[E]) begin(newest bool) {
	c.at, c.back = c.oldest, newest
	if newest {
		c.at = c.newest
	}
}

// next moves the look on.
func (c *chain[E]) next() {
	l := c.of(c.at)
	if c.back {
		c.at = l.older
	} else {
		c.at = l.newer
	}
}
