package faulty

import (
	"strings"
	"sync"
	"time"
)

// fault is the name of the client's fault; it is empty for a client without a fault.
type fault string

func (f fault) is(name string) bool { return string(f) == name }

// Client holds locks over one connection at a time.
type Client struct {
	path  string
	fault fault
	say   func(any) // prints a line; does not block for long

	mu      sync.Mutex
	conn    *conn             // guarded by mu, as are all fields below; the newest connection, or nil
	dialing chan struct{}     // closed when the dial in progress ends; nil if there is none
	holds   map[name][]*hold  // the newest hold is last
	giveUp  map[int]func()    // by command id: withdraws its acquire
	newest  map[string]uint64 // for a fault: the last fence of a key
	single  sync.Mutex        // for a fault
}

func (c *Client) connect() (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.dialing != nil {
		ch := c.dialing
		c.mu.Unlock()
		<-ch
		c.mu.Lock()
	}
	if c.conn != nil && c.conn.ended == nil {
		return c.conn, nil
	}
	c.dialing = make(chan struct{})
	cn, err := dial(c)
	close(c.dialing)
	c.dialing = nil
	if err != nil {
		if c.fault.is("dials-for-ever") {
			c.mu.Unlock()
			time.Sleep(time.Hour)
			c.mu.Lock()
		}
		return nil, err
	}
	c.conn = cn
	return cn, nil
}

// refused returns an error if the owner has lost the key and has not released it. Then the owner
// may not acquire the key.
func (c *Client) refused(w keyOwner) error {
	for n, hs := range c.holds {
		for _, h := range hs {
			if (keyOwner{n.key, n.owner}) != w || h.permit {
				continue
			}
			if h.lapse(); h.over || h.lost == "" || c.fault.is("re-enters-what-was-lost") ||
				h.lost == "connection" && c.fault.is("re-enters-over-connections") ||
				(h.lost == "silence" || h.lost == "fixed_end" || h.lost == "too_long") &&
					c.fault.is("re-enters-what-ran-out") {
				continue
			}
			return failure("not_held")
		}
	}
	return nil
}

// take returns the hold of a grant: a new one, or the one that the grant re-enters.
func (c *Client) take(cn *conn, n name, permit, fixed bool, g *grant) *hold {
	n.fence = g.fence
	c.newest[n.key] = g.fence
	for _, h := range cn.holds {
		if h.name == n && !h.over && h.lost == "" && !permit {
			h.granted(g, true)
			return h
		}
	}
	h := &hold{name: n, c: cn, permit: permit, fixed: fixed}
	h.granted(g, true)
	h.believed = true
	cn.holds = append(cn.holds, h)
	c.holds[n] = append(c.holds[n], h)
	return h
}

// find returns the newest hold of that name that has not been released completely, or nil.
func (c *Client) find(n name) *hold {
	if c.fault.is("releases-any-fence") {
		n.fence = c.newest[n.key]
	}
	if c.fault.is("takes-all-owners-for-one") {
		n.owner = 1
	}
	var found *hold
	for _, h := range c.holds[n] {
		if !h.over && h.count > 0 {
			found = h
		}
	}
	return found
}

// terms are the terms of an acquire besides the key.
type terms struct {
	owner   uint64
	mode    string
	wait    int64
	ttl     int64
	fixed   bool
	permits int
	keep    int64
}

func (c *Client) acquire(key string, q terms, giveUp func(func())) (*hold, error) {
	cn, err := c.connect()
	if err != nil {
		return nil, err
	}
	if c.fault.is("asks-one-by-one") {
		c.single.Lock()
		defer c.single.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, fs := c.asked(key, &q)
	w := keyOwner{key, q.owner}
	permit := q.mode == "permit" && !c.fault.is("takes-permits-for-locks")
	c.awaitCancel(cn, w)
	if err := c.refused(w); err != nil && !permit {
		return nil, err
	}
	if c.fault.is("re-enters-permits") && permit {
		for _, h := range cn.holds {
			if h.key == key && h.owned() {
				h.count++
				return h, nil
			}
		}
	}
	var h *hold
	given := false
	cl := &call{take: func(f *fields) error {
		g, err := readGrant(f)
		switch {
		case err != nil || given && c.fault.is("forgets-what-it-gave-up"):
			return err
		case given:
			_, err = cn.send(3, nil, key, q.owner, g.fence, 0)
		case !permit && c.refused(w) != nil && !c.fault.is("takes-grants-behind-a-loss"):
			_, err = cn.send(3, nil, key, q.owner, g.fence, 0)
		default:
			h = c.take(cn, name{key, q.owner, 0}, permit, q.fixed, &g)
		}
		return err
	}}
	if cl, err = cn.send(2, cl, fs...); err != nil {
		return nil, err
	}
	id, done := cn.lastID, cl.done
	giveUp(func() { given = c.withdraw(cn, w, id, cl) })
	c.mu.Unlock()
	err = <-done
	c.mu.Lock()
	switch {
	case err != nil && c.takesForGrant(err):
		return &hold{name: name{key, q.owner, c.newest[key]}, c: cn, valid: now() + 1<<30, count: 1}, nil
	case err != nil:
		return nil, err
	case h == nil: // the owner has lost the key meanwhile
		return nil, failure("not_held")
	case h.owned() || h.lost != "" || c.fault.is("believes-silence"):
		return h, nil
	}
	// The grant came too late: release it.
	if !c.fault.is("keeps-what-came-late") {
		_, _ = cn.send(3, nil, key, q.owner, h.fence, 0)
	}
	h.count--
	h.over = h.count == 0
	return nil, failure("not_held")
}

// awaitCancel waits until no cancel of an acquire of w is in flight. It is called with Client.mu
// held, which it releases meanwhile.
func (c *Client) awaitCancel(cn *conn, w keyOwner) {
	if c.fault.is("asks-before-its-cancel-is-answered") {
		return
	}
	for ch := cn.giving[w]; ch != nil; ch = cn.giving[w] {
		c.mu.Unlock()
		<-ch
		c.mu.Lock()
	}
}

// takesForGrant reports whether the client's fault is to treat this refusal as a grant.
func (c *Client) takesForGrant(err error) bool {
	switch err {
	case failure("timeout"), failure("denied"):
		return c.fault.is("takes-refusals-for-grants")
	case failure("upgrade"):
		return c.fault.is("upgrades-by-itself")
	}
	return false
}

// asked returns the fields of an acquire. Most faults of a careless client are here.
func (c *Client) asked(key string, q *terms) (string, []any) {
	if c.fault.is("trims-keys") {
		key = strings.ToLower(strings.TrimSpace(key))
	}
	if c.fault.is("mends-bad-keys") {
		key = strings.Map(func(r rune) rune {
			if r < ' ' || r >= 0x7f && r < 0xa0 {
				return '_'
			}
			return r
		}, key)
		key = key[:min(len(key), 512)]
	}
	if c.fault.is("takes-all-owners-for-one") {
		q.owner = 1
	}
	if c.fault.is("clamps-ttls") {
		q.ttl = min(max(q.ttl, 0), 86_400_000)
	}
	if c.fault.is("clamps-waits") && q.wait < 0 {
		q.wait = 1000
	}
	mode, flags := 0, 0
	switch {
	case q.mode == "shared" && !c.fault.is("shares-nothing"):
		mode = 1
	case q.mode == "permit" && !c.fault.is("takes-permits-for-locks"):
		mode = 2
	}
	if q.fixed && !c.fault.is("fixes-nothing") {
		flags = 1
	}
	fs := []any{key, q.owner, mode, q.wait, q.ttl, flags}
	if mode == 2 {
		fs = append(fs, q.permits)
	}
	if q.keep > 0 && !c.fault.is("keeps-nothing") {
		if len(fs) == 6 {
			fs = append(fs, 0)
		}
		fs = append(fs, "", q.keep)
	}
	return key, fs
}

// withdraw abandons an acquire. Its caller returns at once, and a grant that still arrives is
// released. It returns false if the acquire has ended already.
func (c *Client) withdraw(cn *conn, w keyOwner, id uint64, cl *call) bool {
	if cn.calls[id] != cl || c.fault.is("ignores-cancel") {
		return false
	}
	ch := make(chan struct{})
	if cn.giving[w] != nil {
		return true
	}
	cn.giving[w] = ch
	answered := func() {
		if cn.giving[w] == ch {
			delete(cn.giving, w)
			close(ch)
		}
	}
	cancel := &call{
		take: func(f *fields) error { f.num(); answered(); return f.done() },
		fail: func(failure) { answered() },
	}
	_, err := cn.send(6, cancel, id, w.key)
	if err != nil {
		answered()
	}
	select {
	case cl.done <- failure("canceled"):
	default:
	}
	cl.done = make(chan error, 1) // nothing waits for it any more
	return true
}

// release asks for no answer if quiet is true. It also ends what a keep keeps, if now is true.
func (c *Client) release(n name, quiet, now bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.find(n)
	if h == nil {
		if c.fault.is("takes-any-release-for-right") {
			return nil
		}
		return failure("not_held")
	}
	if !c.fault.is("looks-away-on-release") {
		h.lapse()
	}
	if h.lost != "" {
		return c.letGoLost(h)
	}
	flags, last := 0, h.count == 1
	if now && !c.fault.is("ignores-now") {
		flags = 16
	}
	if c.fault.is("releases-all-counts") {
		flags, last = flags|2, true
	}
	if c.fault.is("never-releases") {
		h.over = true
		return nil
	}
	if quiet && last && !c.fault.is("waits-for-quiet-releases") {
		h.count, h.over = 0, true
		_, _ = h.c.send(3, nil, h.key, h.owner, h.fence, 4)
		return nil
	}
	if last {
		h.releases++
	}
	h.count--
	cl, err := h.c.send(3, &call{take: func(f *fields) error { f.num(); h.over = h.over || last; return f.done() },
		fail: func(why failure) {
			switch {
			case why == "not_held" && c.fault.is("believes-other-guards"):
				h.over = h.count == 0
			case why == "not_held", last && why == "unknown",
				last && strings.HasPrefix(string(why), "code_") && !c.fault.is("keeps-on-unknown-codes"):
				h.over = true
			default: // nothing was done
				h.count++
				if last {
					h.releases--
				}
			}
			if why == "unknown" && c.fault.is("keeps-what-is-unconfirmed") {
				h.over = false
				h.count++
				h.releases--
			}
		}}, h.key, h.owner, h.fence, flags)
	if err != nil {
		return nil // the end of the connection releases the hold, too
	}
	c.mu.Unlock()
	err = <-cl.done
	c.mu.Lock()
	if c.fault.is("takes-any-release-for-right") {
		return nil
	}
	return err
}

// letGoLost releases a lost hold. It tells the daemon if the daemon may keep the key closed to
// others.
func (c *Client) letGoLost(h *hold) error {
	tell := h.closedToOthers() && h.c.ended == nil
	why := error(failure("not_held"))
	if h.count--; h.count == 0 {
		h.over = true
	}
	if tell {
		flags := 0
		if c.fault.is("releases-lost-holds-quietly") {
			flags = 4
		}
		cl, err := h.c.send(3, nil, h.key, h.owner, h.fence, flags)
		if err == nil {
			c.mu.Unlock()
			said := <-cl.done
			c.mu.Lock()
			if c.fault.is("releases-what-ran-out-as-the-daemon-says") {
				why = said
			}
		}
	}
	if c.fault.is("takes-any-release-for-right") {
		return nil
	}
	return why
}

func (c *Client) forceUnlock(key string, fence uint64) (ended uint64, err error) {
	cn, err := c.connect()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault.is("unlocks-every-fence") {
		fence = 0
	}
	cl, err := cn.send(14, &call{take: func(f *fields) error { ended = f.num(); return f.done() }},
		key, 0, fence)
	if err != nil {
		return 0, err
	}
	c.mu.Unlock()
	err = <-cl.done
	c.mu.Lock()
	return ended, err
}

// change sends a renewal or a downgrade.
func (c *Client) change(n name, op int, more ...any) (*hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.find(n)
	if op == 4 && c.fault.is("renews-nothing") || op == 5 && c.fault.is("downgrades-by-itself") {
		return &hold{name: n}, nil
	}
	if h == nil {
		return nil, failure("not_held")
	}
	if !c.fault.is("changes-what-ran-out") {
		h.lapse()
	}
	if h.lost != "" {
		return nil, failure("not_held")
	}
	cl, err := h.c.send(op, &call{
		take: func(f *fields) error {
			g, err := readGrant(f)
			if err == nil {
				h.granted(&g, false)
			}
			return err
		},
		fail: func(why failure) {
			if why == "not_held" && !c.fault.is("believes-a-renewal-that-failed") {
				h.lose("gone")
			}
		}}, append([]any{h.key, h.owner, h.fence}, more...)...)
	if err != nil {
		return nil, err
	}
	c.mu.Unlock()
	err = <-cl.done
	c.mu.Lock()
	if err == nil && h.lost != "" && !c.fault.is("takes-late-renewals-for-success") {
		err = failure("not_held")
	}
	return h, err
}
