package cache

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// world is a table with its stores, under random events. Two worlds with the same seed see the same
// events.
type world struct {
	rand     *rand.Rand
	tab      *Table
	out      Effects
	now      int64
	id       uint64
	stores   []*StoreTraits
	spaces   []*Namespace
	ns       map[string]*Namespace // by key
	sessions map[uint64]*Session
	ids      []uint64
	ops      []Op
	routing  bool     // the routes have changed, and Reroute has yet to be called
	no       []uint64 // the session of each store
	base     []uint64
	seen     []string   // the effects of the last event
	users    []*Session // their detached holds
}

var randomSeeds = flag.Int("random-seeds", 300, "how many random runs of a table")

var worldKeys = []string{"a", "b"}

func newWorld(seed uint64) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), now: 1000 * second,
		ns:       map[string]*Namespace{},
		sessions: map[uint64]*Session{}, base: make([]uint64, 4)}
	c := DefaultConfig()
	c.Habits = 1 + w.n(2)
	w.tab = New(c)
	for id := range 2 {
		s := &StoreTraits{ID: id, Queue: w.may(.8)}
		switch w.n(4) {
		case 0:
			s.Rebase, s.Floors = true, true
		case 1:
			s.Session, s.SessionTTL = true, 10*time.Second
		case 2:
			s.Session, s.SessionTTL, s.TTLs, s.Pair, s.Floors = true, 10*time.Second, w.may(.5),
				true, true
		case 3:
			s.Rebase = true
		}
		if w.may(.7) {
			s.Keeps = time.Duration(5+w.n(10)) * time.Second
		}
		w.stores = append(w.stores, s)
		w.no = append(w.no, 1)
		if s.Session {
			w.tab.SessionUntil(s, 1, w.now+10*second, w.now, &w.out)
		}
	}
	for range 4 {
		ns := &Namespace{Store: w.stores[w.n(2)], MaxHandoffs: 1 + w.n(3),
			MaxHandoffTime: 50 * time.Millisecond}
		if w.may(.3) {
			ns.Linger, ns.LingerPause = 2*time.Second, time.Second
		}
		if w.may(.6) {
			ns.Local, ns.LocalAfter = true, time.Duration(w.n(3))*time.Second
		}
		if w.may(.2) {
			ns.MaxHold = 5 * time.Second
		}
		if w.may(.2) {
			ns.Tenure, ns.Pause = 500*time.Millisecond, 250*time.Millisecond
		}
		if w.may(.2) {
			ns.Epoch = 1000
		}
		if w.may(.3) {
			ns.Heartbeat = 3 * time.Second
		}
		w.spaces = append(w.spaces, ns)
	}
	for _, k := range worldKeys {
		w.ns[k] = w.spaces[w.n(len(w.spaces))]
	}
	w.newUsers()
	for range 3 {
		w.open()
	}
	return w
}

func (w *world) newUsers() {
	w.users = []*Session{NewDetached(1<<40, 1, nil), NewDetached(1<<40+1, 1, nil)}
}

// newSession makes a session of one of the users.
func (w *world) newSession(id uint64) {
	w.sessions[id] = NewSession(id, 1)
	w.sessions[id].Detached = w.users[id%2]
}

// sessionOf returns a session, or the record of a user; nil if there is none.
func (w *world) sessionOf(id uint64) *Session {
	for _, u := range w.users {
		if u.ID == id {
			return u
		}
	}
	return w.sessions[id]
}

func (w *world) n(n int) int               { return w.rand.IntN(n) }
func (w *world) may(p float64) bool        { return w.rand.Float64() < p }
func (w *world) route(k string) *Namespace { return w.ns[k] }

func (w *world) open() {
	w.id++
	w.ids = append(w.ids, w.id)
	w.newSession(w.id)
}

func (w *world) session() *Session { return w.sessions[w.ids[w.n(len(w.ids))]] }

func (w *world) re() Request {
	w.id++
	return Request{Session: w.session(), ID: w.id}
}

// aHold returns a random hold, in an order that a snapshot keeps.
func (w *world) aHold() *hold {
	var all []*hold
	for _, l := range w.tab.sorted() {
		all = append(all, slices.Collect(l.holds.all())...)
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.n(len(all))]
}

func (w *world) event() (what string) {
	t, now, out := w.tab, w.now, &w.out
	switch n := w.n(20); n {
	case 0, 1, 2, 3:
		k := worldKeys[w.n(len(worldKeys))]
		q := &Acquire{Re: w.re(), NS: w.ns[k], Key: []byte(k), Owner: uint64(w.n(2)),
			Mode: Mode(w.n(3)), TTL: int64(1+w.n(8)) * second,
			Wait: []int64{0, 0, second, Forever, Forever}[w.n(5)], Fixed: w.may(.2),
			Limit: uint32(1 + w.n(2))}
		if w.may(.3) {
			q.Keep = int64(1+w.n(12)) * second
		}
		if q.Mode == 2 {
			q.Mode = Permit
		}
		t.Acquire(q, now, out)
		return fmt.Sprintf("acquire %+v", *q)
	case 4, 5, 6:
		h := w.aHold()
		if h == nil {
			return "-"
		}
		w.id++
		re := Request{Session: h.s, ID: w.id}
		if w.may(.05) {
			re = w.re()
		}
		q := &Release{Re: re, Key: []byte(h.l.key), Owner: h.owner, Fence: h.fence, All: w.may(.5),
			Async: w.may(.2), Now: w.may(.2)}
		if h.detached() {
			if w.may(.7) {
				return "-"
			}
			q.Re = w.re()
			t.ReleaseDetached(q, w.may(.2), now, out)
			return fmt.Sprintf("release detached %+v", *q)
		}
		t.Release(q, now, out)
		return fmt.Sprintf("release %+v", *q)
	case 7:
		h := w.aHold()
		if h == nil {
			return "-"
		}
		if h.detached() {
			return "-"
		}
		w.id++
		re := Request{Session: h.s, ID: w.id}
		if w.may(.5) {
			t.Renew(&Renew{Re: re, Key: []byte(h.l.key), Owner: h.owner, Fence: h.fence,
				TTL: int64(w.n(8)) * second}, now, out)
			return "renew " + h0(re)
		}
		t.Downgrade(&Downgrade{Re: re, Key: []byte(h.l.key), Owner: h.owner, Fence: h.fence}, now,
			out)
		return "downgrade " + h0(re)
	case 8:
		k := worldKeys[w.n(len(worldKeys))]
		re := w.re()
		switch w.n(6) {
		case 4:
			s := w.session()
			if x := &s.index[0]; x.holds.first != x.holds.last {
				return "-" // a snapshot does not keep their order
			}
			is := t.LoseSilent(s, now-int64(w.n(6))*second, second, now, out)
			return fmt.Sprintf("silent %d: %+v", s.ID, is)
		case 5:
			of := Watermark{Until: Forever}
			s := w.session()
			t.Survey(s, true, &of, 100, now)
			return fmt.Sprintf("survey %d: %+v", s.ID, of)
		case 0:
			t.Inspect(re, w.ns[k], []byte(k), []Mode{Exclusive, Permit}[w.n(2)], now, out)
			return "inspect " + k
		case 1:
			permit := w.may(.5)
			t.Force(k, permit, 0, now, out)
			return fmt.Sprint("force ", k, permit)
		case 2:
			if w.may(.3) {
				i := w.n(len(w.ids))
				s := w.sessions[w.ids[i]]
				if x := &s.index[0]; x.holds.first != x.holds.last ||
					x.waits.first != x.waits.last {
					return "-" // a snapshot does not keep their order
				}
				s.Ended.Store(true)
				t.EndSession(s, 100, now, out)
				delete(w.sessions, s.ID)
				w.ids = slices.Delete(w.ids, i, i+1)
				w.open()
				t.Snapshot(&Coder{}, worldLinks{w}) // it drops what nobody waits for any more
				return fmt.Sprint("end session ", s.ID)
			}
			return "-"
		default:
			s := w.session()
			var first *waiter
			for x := range s.index[0].waits.all() {
				if first == nil || x.req.ID < first.req.ID {
					first = x
				}
			}
			if first == nil {
				return "-"
			}
			w.id++
			t.Cancel(Request{Session: s, ID: w.id}, []byte(first.l.key), first.req.ID, now, out)
			return "cancel"
		}
	case 9, 10, 11, 12, 13:
		if len(w.ops) == 0 {
			return "-"
		}
		i := w.n(len(w.ops))
		op := w.ops[i]
		w.ops = slices.Delete(w.ops, i, i+1)
		r := w.result(&op)
		t.Result(&op, &r, now-int64(w.n(100))*second/1000, now, out)
		return fmt.Sprintf("result of %v %s %d: %+v", op.Kind, op.Key, op.Token, r)
	case 14:
		st := w.stores[w.n(2)]
		h := Hint{Kind: HintKind(1 + w.n(4)), Mode: []Mode{Exclusive, Permit}[w.n(2)],
			Key: worldKeys[w.n(len(worldKeys))]}
		t.Hint(st, h, now, out)
		return fmt.Sprintf("hint %+v", h)
	case 15:
		st := w.stores[w.n(2)]
		if t.store(st).downAt == 0 {
			t.StoreDown(st, errors.New("down"), now, out)
			return fmt.Sprint("down ", st.ID)
		}
		t.StoreUp(st, now, out)
		return fmt.Sprint("up ", st.ID)
	case 16:
		st := w.stores[w.n(2)]
		if !st.Session {
			return "-"
		}
		switch {
		case w.may(.1):
			t.SessionLost(st, w.no[st.ID], now, out)
			w.no[st.ID]++
			return fmt.Sprint("session lost ", st.ID)
		default:
			t.SessionUntil(st, w.no[st.ID], now+10*second, now, out)
			return fmt.Sprint("session renewed ", st.ID)
		}
	case 17:
		if !w.routing && w.may(.7) {
			return "-"
		}
		if !w.routing {
			k := worldKeys[w.n(len(worldKeys))]
			to := w.spaces[w.n(len(w.spaces))]
			t.Leave(w.ns[k].Store, to.Store, w.ns[k].Epoch)
			w.ns[k], w.routing = to, true
			if w.may(.5) {
				t.Follow(w.route)
			}
			if w.may(.5) {
				return "follow " + k
			}
		}
		w.routing = false
		t.Reroute(w.route, anybody, now, out)
		return "reroute"
	case 18:
		for _, l := range t.sorted() {
			if l.state == stateHeld && l.tracked && w.may(.5) {
				t.RenewDue(l, l.token, now, out)
				return "renewal due " + l.key
			}
		}
		return "-"
	default:
		d := []int64{1, 20, 100, 1000, 3000}[w.n(5)] * second / 1000
		for end := w.now + d; w.now < end; {
			w.now = min(end, max(w.now, t.NextWake()))
			for t.NextWake() <= w.now {
				t.Tick(w.now, 100, out)
			}
		}
		return fmt.Sprintf("tick %v", time.Duration(d))
	}
}

func h0(re Request) string { return fmt.Sprint(re.Session.ID, " ", re.ID) }

func (w *world) result(op *Op) Result {
	st := w.stores[op.Store]
	r := Result{Left: -1}
	fails := w.may(.2)
	switch {
	case fails && w.may(.5):
		r.Status, r.Err = Refused, errors.New("refused")
		r.Gone = w.may(.2)
		return r
	case fails:
		r.Err = errors.New("no answer")
		r.Partly, r.Expires = op.Kind.Ends() && st.Pair && w.may(.5), w.may(.5)
		return r
	}
	base := func() {
		w.base[op.Store] = max(w.base[op.Store], op.Floor) + 1
		r.Base = w.base[op.Store]
	}
	switch op.Kind {
	case OpTry, OpJoin:
		switch n := w.n(10); {
		case n < 6:
			r.Status, r.Contended = Granted, w.may(.2)
			base()
		case op.Kind == OpJoin && n < 9:
			r.Status = Queued
		default:
			r.Status, r.Left = Busy, second
		}
	case OpRelease:
		r.Status = Done
		if w.may(.1) {
			r.Status = NotHeld
		}
	case OpWithdraw:
		r.Status = Done
	case OpRenew, OpDowngrade:
		r.Status, r.Contended = Done, w.may(.2)
		if w.may(.1) {
			r.Status = NotHeld
		} else if op.Rebase {
			base()
		}
	case OpPeek:
		r.Status = []Status{Busy, Done}[w.n(2)]
	}
	if st.Session {
		r.Session, r.SessionNo = w.now+9*second, w.no[op.Store]
	}
	return r
}

// take records the effects of an event, and of the wake-ups that are due at once.
func (w *world) take() {
	w.now++ // no two wake-ups are due at the same time
	for w.tab.NextWake() <= w.now {
		w.tab.Tick(w.now, 100, &w.out)
	}
	w.seen = nil
	for _, m := range w.out.Messages {
		if !m.Re.Session.Ended.Load() {
			w.seen = append(w.seen, "message "+showMessage(&m))
		}
	}
	for _, op := range w.out.Ops {
		w.seen = append(w.seen, "op "+showOp(&op))
		w.ops = append(w.ops, op)
	}
	for _, tr := range w.out.Tracks {
		w.seen = append(w.seen, fmt.Sprint("track ", tr.Lease.key, tr.Token, tr.Until, tr.TTL,
			tr.Failed, tr.Store))
	}
	for _, n := range w.out.Notices {
		if n.Session.Ended.Load() {
			continue
		}
		w.seen = append(w.seen, fmt.Sprint("notice ", n.Kind, n.Mode, n.Code, n.Cause, n.Reason,
			n.Released, n.Key, n.Session.ID, n.Owner, n.Fence, n.Took))
	}
	slices.Sort(w.seen) // wake-ups that are due at the same time may come in another order
	w.out.Reset()
}

// counts returns what the table counts.
func (w *world) counts() string {
	var b strings.Builder
	if len(w.tab.stats) > 0 {
		s := *w.tab.stats[0]
		// A snapshot leaves out the released holds of sessions that have ended.
		s.FoundGone, s.Lost[protocol.LostGone] = 0, 0
		if s != (Stats{}) {
			fmt.Fprintf(&b, "%+v\n", s)
		}
	}
	for _, id := range w.ids {
		s := w.sessions[id]
		fmt.Fprintln(&b, "session", id, s.Holds.Load(), s.Waiters.Load(), s.Shards.Load())
	}
	for _, s := range w.users {
		fmt.Fprintln(&b, "detached", s.Holds.Load(), s.Shards.Load())
	}
	for _, s := range w.stores {
		if st := w.tab.record(s); st != nil && (st.users > 0 || st.trip > 0) {
			fmt.Fprintln(&b, "store", st.users, st.held, st.moved, st.known(7), st.downAt,
				st.sessionUntil, st.sessionNo, st.trip)
		}
	}
	for _, l := range w.tab.sorted() {
		fmt.Fprintln(&b, l.key, l.rank(), l.state, l.token, l.op, l.opGen, l.ttl, l.maxTTL,
			l.retryAt, l.nHolds, l.minEnd, l.held, l.asked, l.releasing)
	}
	return b.String()
}

func showMessage(m *Message) string {
	x := *m
	x.Re, x.Err, x.Store = Request{}, nil, nil
	store := -1
	if m.Store != nil {
		store = m.Store.ID
	}
	return fmt.Sprintf("to %d %d store %d err %v: %+v", m.Re.Session.ID, m.Re.ID, store, m.Err, x)
}

var gens = regexp.MustCompile(`Gen:\d+`)

// masked returns effects without the generations of ops.
func masked(seen []string) string {
	all := strings.Split(gens.ReplaceAllString(strings.Join(seen, "\n"), ""), "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func showOp(op *Op) string {
	x := *op
	x.Ref, x.For = nil, nil
	return fmt.Sprintf("%v %+v", op.Kind, x)
}

// worldLinks are the links of a snapshot of a world.
type worldLinks struct{ *world }

func (x worldLinks) Store(c *Coder, s **StoreTraits) {
	id := 0
	if *s != nil {
		id = (*s).ID
	}
	Num(c, &id)
	*s = x.stores[id]
}

func (x worldLinks) Session(c *Coder, s **Session) {
	var id uint64
	if *s != nil {
		id = (*s).ID
	}
	Num(c, &id)
	if c.Reading && id != 0 {
		if *s = x.sessionOf(id); *s == nil {
			c.Fail(fmt.Errorf("session %d is not there", id))
		}
	}
}

func (x worldLinks) Lives(s *Session) bool              { return x.sessionOf(s.ID) != nil }
func (x worldLinks) InternalReply(*Coder, *Request)     {}
func (x worldLinks) Class(c *Coder, class *uint16)      { Num(c, class) }
func (x worldLinks) Classes() []uint16                  { return []uint16{0} }
func (x worldLinks) Lease(*Coder, *Lease, *StoreTraits) {}
func (x worldLinks) Policy(key string) *Namespace       { return x.ns[key] }

// again returns a world whose table is made from a snapshot of w's table.
func (w *world) again(t *testing.T) *world {
	t.Helper()
	c := &Coder{}
	w.tab.Snapshot(c, worldLinks{w})
	for i := range w.ops {
		w.tab.SnapshotOp(c, &w.ops[i])
	}
	next := *w
	next.sessions = map[uint64]*Session{}
	next.newUsers()
	for id := range w.sessions {
		next.newSession(id)
	}
	next.tab, next.out, next.ops = New(w.tab.cfg), Effects{}, make([]Op, len(w.ops))
	next.ids, next.no, next.base = slices.Clone(w.ids), slices.Clone(w.no), slices.Clone(w.base)
	next.ns = map[string]*Namespace{}
	for k, ns := range w.ns {
		next.ns[k] = ns
	}
	defer func(f func(from, to state)) { onEnter = f }(onEnter)
	onEnter = nil // what is read from a snapshot is no transition
	r := &Coder{Reading: true, B: c.B}
	next.tab.Snapshot(r, worldLinks{&next})
	for i := range next.ops {
		next.tab.SnapshotOp(r, &next.ops[i])
		next.ops[i].Store = w.ops[i].Store
	}
	if r.Err != nil || len(r.B) > 0 {
		t.Fatalf("%v, %d bytes are left", r.Err, len(r.B))
	}
	next.tab.toAdvance = nil // Reroute has nothing to do: the policies are the same
	return &next
}

// A table that is made from a snapshot does the same as the table of which the snapshot is.
func TestATableFromASnapshotDoesTheSame(t *testing.T) {
	for seed := range uint64(*randomSeeds) {
		a, b := newWorld(seed), newWorld(seed)
		when := rand.New(rand.NewPCG(seed, 2))
		var log []string
		for range 100 {
			what, other := a.event(), b.event()
			a.take()
			b.take()
			log = append(log, what)
			for _, s := range a.seen {
				log = append(log, "    "+s)
			}
			x, y := strings.Join(append(a.seen, a.counts()), "\n"),
				strings.Join(append(b.seen, b.counts()), "\n")
			if strings.HasPrefix(what, "survey") || strings.HasPrefix(what, "silent") {
				x, y = what+x, other+y
			}
			if !slices.Equal(a.seen, b.seen) && masked(a.seen) == masked(b.seen) {
				break // wake-ups that were due at the same time came in another order
			}
			if x != y {
				t.Fatalf("seed %d\n%s\n--- without a snapshot:\n%s\n--- with:\n%s", seed,
					strings.Join(log, "\n"), x, y)
			}
			if when.Float64() < .3 && !a.routing {
				events := b.rand
				b = b.again(t)
				b.rand = events
				log = append(log, "SNAPSHOT")
			}
		}
	}
}

// After each event, the table has nothing to do before its next wake-up.
func TestNothingIsLeftToDoBeforeTheNextWakeUp(t *testing.T) {
	for seed := range uint64(*randomSeeds) {
		w := newWorld(seed)
		var log []string
		for range 100 {
			log = append(log, w.event())
			w.take()
			for _, s := range w.seen {
				log = append(log, "    "+s)
			}
			for _, at := range []int64{w.now, min(w.tab.NextWake()-1, w.now+100*second)} {
				if at < w.now || w.routing {
					continue
				}
				if slices.ContainsFunc(w.tab.sorted(), func(l *Lease) bool {
					return l.held.starved || l.idleUntil() != 0 && l.st.downAt != 0
				}) {
					// a renewal may come too late for a handoff; a lease that lingers ends at its
					// next wake-up
					continue
				}
				c := w.again(t)
				wake := c.tab.NextWake()
				c.tab.advanceEach(c.tab.sorted(), at, &c.out)
				c.take()
				for _, s := range c.seen {
					if !strings.HasPrefix(s, "track") {
						t.Fatalf("seed %d\n%s\n--- now %d, at %d, next wake %d, left to do:\n%s\n",
							seed, strings.Join(log, "\n"), w.now, at, wake, strings.Join(c.seen,
								"\n"))
					}
				}
			}
		}
	}
}
