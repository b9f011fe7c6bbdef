package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// snapshotFormat is the version of the snapshot format. Every change of the format changes it: a
// process does not read a snapshot of another version.
const snapshotFormat = 16

// Errors of snapshots.
var (
	ErrSnapshotFormat = errors.New("snapshot of another format")
	errUnderWay       = errors.New("a request is in progress that a snapshot cannot contain")
)

// snapshotCoder writes or reads one engine. It implements cache.Links for the tables.
type snapshotCoder struct {
	*cache.Coder
	e          *Engine
	sessions   []*Session // in their order
	byID       map[uint64]*Session
	storeLanes map[int]*StoreLane    // the stores, by their numbers in the snapshot
	gone       map[string]*StoreLane // stand-ins for the other process' stores, by their names
	order      []*StoreLane          // the stores, in the order of the snapshot
	classes    []uint16              // this process' class numbers, in the order of the snapshot
	places     map[uint16]int        // the index in classes of each class number
	due        []dueLease            // leases that were read
	was        *routeTable           // the routes of the process that wrote the snapshot
	shard      int                   // of the table that is written or read
}

// dueLease is a lease together with the store that renews it.
type dueLease struct {
	lease *cache.Lease
	at    *StoreLane
}

func newSnapshotCoder(c *cache.Coder, e *Engine) *snapshotCoder {
	return &snapshotCoder{Coder: c, e: e, byID: make(map[uint64]*Session),
		storeLanes: make(map[int]*StoreLane), places: make(map[uint16]int)}
}

// Snapshot returns the whole state of e, as bytes, and its sessions in the order of the snapshot.
// No event may come meanwhile, and no batch may be in flight. A store query in progress is an
// error.
func (e *Engine) Snapshot() ([]byte, []*Session, error) {
	m := newSnapshotCoder(new(cache.Coder), e)
	m.code()
	return m.B, m.sessions, m.Err
}

// Take reads a snapshot into e, which is new and has its stores and namespaces. It returns the
// sessions in the order of the snapshot. gone has a stand-in for each store that the snapshot
// names and e does not have, by the name in the snapshot. The caller gives each session a
// transport, and then calls Abandon with the stand-ins, if any, and Tick. A snapshot that is
// damaged, or names any other store that e does not have, is an error; then e cannot be used.
func (e *Engine) Take(snapshot []byte, gone map[string]*StoreLane) ([]*Session, error) {
	m := newSnapshotCoder(&cache.Coder{B: snapshot, Reading: true}, e)
	m.gone = gone
	m.code()
	if m.Err == nil && len(m.B) > 0 {
		m.Fail(errors.New("snapshot has trailing bytes"))
	}
	if m.Err != nil {
		return nil, m.Err
	}
	e.reportFalls(e.carryFloors(m.was, e.routes.Load()))
	for _, d := range m.due {
		d.at.schedule.Restore(d.lease)
	}
	for i := range e.shards {
		e.shards[i].wake.Store(e.shards[i].table.NextWake())
	}
	return m.sessions, nil
}

// NotTakenOver tells e that the leases at a store could not be taken over: see
// cache.Table.NotTakenOver.
func (e *Engine) NotTakenOver(sl *StoreLane) {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) {
		t.NotTakenOver(sl.core, now, out)
	})
}

// StandIn returns a StoreLane in place of a store that another process has used and this one does
// not have. No key is routed to it, and it sends no requests.
func (e *Engine) StandIn(name string, info upstream.Info, parts []Part) (*StoreLane, error) {
	unique := name + " (left behind)"
	for n := 2; e.StoreNamed(unique) != nil; n++ {
		unique = fmt.Sprintf("%s (left behind %d)", name, n)
	}
	sl, err := e.AddStore(unique, info, nil)
	if err == nil {
		sl.parts.Store(&parts)
	}
	return sl, err
}

// Abandon ends all holds and waits at the stores of these stand-ins, and drops the stand-ins: see
// cache.Table.Abandon. It calls Reroute. The caller calls StoreUp afterwards for each store that
// was down. Abandon returns false if something still refers to a stand-in, which would be a bug.
func (e *Engine) Abandon(gone []*StoreLane) bool {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) {
		t.FailingFrom(now)
		for _, sl := range gone {
			t.Abandon(sl.core, now, out)
		}
	})
	e.Reroute()
	return !slices.ContainsFunc(gone, func(sl *StoreLane) bool { return !e.DropStore(sl) })
}

// SetTransport sets the transport of a session that was taken over.
func (s *Session) SetTransport(t Transport) { s.transport = t }

// code writes or reads the whole engine.
func (m *snapshotCoder) code() {
	format, e := snapshotFormat, m.e
	cache.Num(m.Coder, &format)
	if format != snapshotFormat {
		m.Fail(fmt.Errorf("%w: %d; this program reads %d", ErrSnapshotFormat, format,
			snapshotFormat))
		return
	}
	m.stores()
	m.routing()
	m.classTable()
	cache.Num(m.Coder, &e.lastID)
	m.count(&e.cycles.count)
	for i := range e.faults {
		m.count(&e.faults[i])
	}
	m.sessionTable()
	m.tables()
	for _, sl := range m.order {
		if m.Err == nil {
			m.lanes(sl)
		}
	}
}

// tables writes or reads all tables, several at a time.
func (m *snapshotCoder) tables() {
	if m.Err != nil {
		return
	}
	var parts [shards]snapshotCoder
	var next atomic.Int32
	var wg sync.WaitGroup
	for i := range parts {
		parts[i] = snapshotCoder{Coder: &cache.Coder{Reading: m.Reading}, e: m.e, byID: m.byID,
			storeLanes: m.storeLanes, classes: m.classes, places: m.places, shard: i}
		if m.Reading {
			m.Bytes(&parts[i].B)
		}
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < shards; i = next.Add(1) - 1 {
				part, table := &parts[i], m.e.shards[i].table
				if !m.Reading {
					part.B = make([]byte, 0, leaseBytes*(table.Len()+1))
				}
				table.Snapshot(part.Coder, part)
			}
		})
	}
	wg.Wait()
	size := 0
	for i := range parts {
		size += len(parts[i].B) + 10
	}
	m.B = slices.Grow(m.B, size)
	for i := range parts {
		if parts[i].Err != nil {
			m.Fail(parts[i].Err)
		}
		if !m.Reading {
			m.Bytes(&parts[i].B)
		}
		m.due = append(m.due, parts[i].due...)
	}
}

// leaseBytes is the approximate size of a lease with its hold.
const leaseBytes = 200

func (m *snapshotCoder) count(n *atomic.Uint64) {
	v := n.Load()
	cache.Num(m.Coder, &v)
	n.Store(v)
}

func (m *snapshotCoder) stores() {
	all := m.e.Stores()
	cache.List(m.Coder, &all, func(sl **StoreLane) {
		var name string
		id := 0
		if !m.Reading {
			name, id = (*sl).Name(), (*sl).core.ID
		}
		m.String(&name)
		cache.Num(m.Coder, &id)
		if m.Reading {
			if *sl = cmp.Or(m.gone[name], m.e.StoreNamed(name)); *sl == nil {
				m.Fail(fmt.Errorf("there is no store %q here", name))
				return
			}
		}
		m.storeLanes[id] = *sl
		m.order = append(m.order, *sl)
		down := (*sl).Down()
		if m.Error(&down); m.Reading && down != nil {
			(*sl).down.Store(&down)
		}
	})
}

func (m *snapshotCoder) classTable() {
	all := m.e.classes.list()
	slices.SortFunc(all, func(a, b *class) int { // their numbers differ between processes
		return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.name, b.name))
	})
	cache.List(m.Coder, &all, func(c **class) {
		var prefix, name string
		if !m.Reading {
			prefix, name = (*c).prefix, (*c).name
		}
		m.String(&prefix)
		m.String(&name)
		var n uint16
		n, *c = m.e.classes.of(prefix, name)
		m.places[n] = len(m.classes)
		m.classes = append(m.classes, n)
		for i := range (*c).refused {
			m.count(&(*c).refused[i])
		}
	})
}

// lanes writes or reads the queued ops of a store.
func (m *snapshotCoder) lanes(sl *StoreLane) {
	for _, lane := range sl.lanes() {
		var ops []cache.Op
		if !m.Reading {
			ops = lane.Waiting()
		}
		cache.List(m.Coder, &ops, func(op *cache.Op) {
			key := op.Key
			m.String(&key)
			m.e.shards[shardOf(key)].table.SnapshotOp(m.Coder, op)
			op.Store = sl.core.ID
		})
		standIn := slices.Contains(slices.Collect(maps.Values(m.gone)), sl)
		if m.Reading && !standIn { // a stand-in sends no requests
			lane.Push(ops...)
		}
	}
}

// Store writes or reads the number of a store.
func (m *snapshotCoder) Store(c *cache.Coder, s **cache.StoreTraits) {
	id := -1
	if *s != nil {
		id = (*s).ID
	}
	cache.Num(c, &id)
	if !m.Reading {
		return
	}
	if m.storeLanes[id] == nil {
		m.Fail(fmt.Errorf("snapshot refers to unknown store number %d", id))
		*s = m.e.Stores()[0].core
		return
	}
	*s = m.storeLanes[id].core
}

// Session writes or reads the number of a session; 0 for none.
func (m *snapshotCoder) Session(c *cache.Coder, s **cache.Session) {
	var id uint64
	if *s != nil {
		id = (*s).ID
	}
	cache.Num(c, &id)
	if !m.Reading || id == 0 {
		return
	}
	if found := m.byID[id]; found != nil {
		*s = found.core
		return
	}
	m.Fail(fmt.Errorf("snapshot refers to unknown session %d", id))
}

// Lives reports whether a session has not ended.
func (m *snapshotCoder) Lives(s *cache.Session) bool { return m.byID[s.ID] != nil }

// The kinds of internal replies.
const (
	replyNone uint8 = iota
	replyQuiet
	replyMulti
	replyTry
	replyDiscard
	replyPart
	replyPartWaits
)

// InternalReply writes or reads the internal reply of a request. There is no multiRelease, because
// every release of several keys is answered before a snapshot is made.
func (m *snapshotCoder) InternalReply(c *cache.Coder, re *cache.Request) {
	kind, place, key := replyNone, 0, 0
	s := SessionOf(re.Session)
	switch v := re.InternalReply.(type) {
	case nil:
	case *quietRelease:
		kind = replyQuiet
	case discardReply:
		kind = replyDiscard
	case *multiAcquire:
		kind, place = replyMulti, slices.Index(s.multiAcquires, v)
	case try:
		kind, place, key = replyTry, slices.Index(s.multiAcquires, v.m), v.n
	case part:
		kind, place, key = replyPart, slices.Index(s.anyAcquires, v.anyAcquire), v.n
		if v.wait {
			kind = replyPartWaits
		}
	default:
		m.Fail(errUnderWay)
	}
	cache.Num(c, &kind)
	cache.Num(c, &place)
	cache.Num(c, &key)
	if m.Reading {
		re.InternalReply = m.internalReply(s, kind, place, key)
	}
	if r, quiet := re.InternalReply.(*quietRelease); quiet {
		name := string(r.key)
		c.String(&name)
		r.key = []byte(name)
		cache.Num(c, &r.owner)
		cache.Num(c, &r.fence)
	}
}

// internalReply returns the internal reply that was read. place is the index of an acquire of
// several keys of s, and key the index of its key.
func (m *snapshotCoder) internalReply(s *Session, kind uint8, place, key int) any {
	switch {
	case kind == replyQuiet:
		return new(quietRelease)
	case kind == replyDiscard:
		return discardReply{}
	case kind == replyNone:
		return nil
	}
	if kind == replyPart || kind == replyPartWaits {
		if inRange(s.anyAcquires, place) && inRange(s.anyAcquires[place].keys, key) {
			return part{s.anyAcquires[place], key, kind == replyPartWaits}
		}
	} else if inRange(s.multiAcquires, place) && inRange(s.multiAcquires[place].keys, key) {
		if kind == replyMulti {
			return s.multiAcquires[place]
		}
		return try{s.multiAcquires[place], key}
	}
	m.Fail(errUnderWay)
	return nil
}

// inRange reports whether list has an entry at place.
func inRange[T any](list []T, place int) bool { return place >= 0 && place < len(list) }

// Class writes or reads a class number.
func (m *snapshotCoder) Class(c *cache.Coder, class *uint16) {
	place := m.places[*class]
	cache.Num(c, &place)
	if !m.Reading {
		return
	}
	if place < 0 || place >= len(m.classes) {
		m.Fail(fmt.Errorf("snapshot refers to unknown class %d", place))
		return
	}
	*class = m.classes[place]
}

// Classes returns all classes in the order of the snapshot.
func (m *snapshotCoder) Classes() []uint16 { return m.classes }

// Policy returns the namespace to which key is routed.
func (m *snapshotCoder) Policy(key string) *cache.Namespace {
	return routeFor(m.e.routes.Load(), key).policy
}

// Lease writes or reads when a lease is due for renewal.
func (m *snapshotCoder) Lease(c *cache.Coder, l *cache.Lease, s *cache.StoreTraits) {
	r, tracked := &l.Renewal, l.Renewal.Index != 0
	c.Bool(&tracked)
	if !tracked {
		return
	}
	cache.Num(c, &r.Due)
	cache.Num(c, &r.Token)
	if m.Reading {
		r.Shard = int16(m.shard)
		m.due = append(m.due, dueLease{l, (*m.e.storeLanes.Load())[s.ID]})
	}
}
