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

// imageFormat is the form of an engine's image. It changes with whatever changes what is written:
// a process does not read the image of another form.
const imageFormat = 9

// Errors of images.
var (
	ErrImageFormat = errors.New("image of another form")
	errUnderWay    = errors.New("a request is under way that cannot be taken along")
)

// imager is one writing or reading of an engine. It is the Links of its tables.
type imager struct {
	*cache.Coder
	e        *Engine
	sessions []*Session // in their order
	byID     map[uint64]*Session
	units    map[int]*Unit    // the stores, by their numbers in the image
	gone     map[string]*Unit // stand-ins for stores that only the other process has, by their names there
	order    []*Unit          // the stores, in the order of the image
	classes  []uint16         // this process' class numbers, in the order of the image
	places   map[uint16]int   // the index in classes of each class number
	due      []dueLease       // leases that were read
	was      *routes          // of the process that wrote the image
	shard    int              // of the table at work
}

// dueLease is a lease together with the store that renews it.
type dueLease struct {
	lease *cache.Lease
	at    *Unit
}

func newImager(c *cache.Coder, e *Engine) *imager {
	return &imager{Coder: c, e: e, byID: make(map[uint64]*Session), units: make(map[int]*Unit), places: make(map[uint16]int)}
}

// Image is all that e knows, as bytes, and its sessions in the order in which they stand there. No
// event may come meanwhile, nor a batch be out; requests that are still being asked of a store
// are an error.
func (e *Engine) Image() ([]byte, []*Session, error) {
	m := newImager(new(cache.Coder), e)
	m.code()
	return m.B, m.sessions, m.Err
}

// Take makes e, which is new and has its stores and namespaces, go on from an image, and returns
// its sessions in their order. gone has a stand-in for each store that the image names and e does not have, by the
// name there. The caller gives each session a transport, and then calls Abandon with the stand-ins, if any, and
// Tick. An image that makes no sense, or names any other store that e does not have, is an error: e is of no use then.
func (e *Engine) Take(image []byte, gone map[string]*Unit) ([]*Session, error) {
	m := newImager(&cache.Coder{B: image, Reading: true}, e)
	m.gone = gone
	m.code()
	if m.Err == nil && len(m.B) > 0 {
		m.Fail(errors.New("image is longer than what it says"))
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

// Bereave says that what was at a store could not be taken over: see cache.Table.
func (e *Engine) Bereave(u *Unit) {
	e.everywhere(func(t *cache.Table, now int64, out *cache.Effects) { t.Bereave(u.core, now, out) })
}

// StandIn makes a Unit in place of a store that another process has used and this one does not have. No key is
// routed there, and nothing is asked of it.
func (e *Engine) StandIn(name string, info upstream.Info, parts []Part) (*Unit, error) {
	is := name + " (left behind)"
	for n := 2; e.StoreNamed(is) != nil; n++ {
		is = fmt.Sprintf("%s (left behind %d)", name, n)
	}
	u, err := e.AddStore(is, info, nil)
	if err == nil {
		u.parts.Store(&parts)
	}
	return u, err
}

// Abandon ends everything at the stores of these stand-ins, and drops the stand-ins: see cache.Table.Abandon. It
// includes Reroute. The caller calls StoreUp afterwards for each store that was down. Abandon returns false if something
// still refers to one of the stand-ins, which cannot be.
func (e *Engine) Abandon(gone []*Unit) bool {
	e.everywhere(func(t *cache.Table, now int64, out *cache.Effects) {
		t.DownFrom(now)
		for _, u := range gone {
			t.Abandon(u.core, now, out)
		}
	})
	e.Reroute()
	return !slices.ContainsFunc(gone, func(u *Unit) bool { return !e.DropStore(u) })
}

// Carry gives a session that was taken over its connection.
func (s *Session) Carry(t Transport) { s.transport = t }

func (m *imager) code() {
	format, e := imageFormat, m.e
	cache.Num(m.Coder, &format)
	if format != imageFormat {
		m.Fail(fmt.Errorf("%w: %d, and this program knows %d", ErrImageFormat, format, imageFormat))
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
	for _, u := range m.order {
		if m.Err == nil {
			m.lanes(u)
		}
	}
}

// tables writes or reads all tables, several at a time.
func (m *imager) tables() {
	if m.Err != nil {
		return
	}
	var parts [shards]imager
	var next atomic.Int32
	var wg sync.WaitGroup
	for i := range parts {
		parts[i] = imager{Coder: &cache.Coder{Reading: m.Reading}, e: m.e, byID: m.byID, units: m.units,
			classes: m.classes, places: m.places, shard: i}
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
				table.Image(part.Coder, part)
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

// leaseBytes is about what a lease with its hold takes.
const leaseBytes = 200

func (m *imager) count(n *atomic.Uint64) {
	v := n.Load()
	cache.Num(m.Coder, &v)
	n.Store(v)
}

func (m *imager) stores() {
	all := m.e.stores()
	cache.List(m.Coder, &all, func(u **Unit) {
		var name string
		id := 0
		if !m.Reading {
			name, id = (*u).Name(), (*u).core.ID
		}
		m.String(&name)
		cache.Num(m.Coder, &id)
		if m.Reading {
			if *u = cmp.Or(m.gone[name], m.e.StoreNamed(name)); *u == nil {
				m.Fail(fmt.Errorf("there is no store %q here", name))
				return
			}
		}
		m.units[id] = *u
		m.order = append(m.order, *u)
		down := (*u).Down()
		if m.Error(&down); m.Reading && down != nil {
			(*u).down.Store(&down)
		}
	})
}

func (m *imager) classTable() {
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

// lanes is what waits to be asked of a store.
func (m *imager) lanes(u *Unit) {
	for _, lane := range u.lanes() {
		var ops []cache.Op
		if !m.Reading {
			ops = lane.Waiting()
		}
		cache.List(m.Coder, &ops, func(op *cache.Op) {
			key := op.Key
			m.String(&key)
			m.e.shards[shardOf(key)].table.ImageOp(m.Coder, op)
			op.Store = u.core.ID
		})
		if m.Reading && !slices.Contains(slices.Collect(maps.Values(m.gone)), u) { // nothing is asked of a stand-in
			lane.Push(ops...)
		}
	}
}

// Store is the number of a store.
func (m *imager) Store(c *cache.Coder, s **cache.Store) {
	id := -1
	if *s != nil {
		id = (*s).ID
	}
	cache.Num(c, &id)
	if !m.Reading {
		return
	}
	if m.units[id] == nil {
		m.Fail(fmt.Errorf("store number %d is not there", id))
		*s = m.e.stores()[0].core
		return
	}
	*s = m.units[id].core
}

// Session is the number of a session, 0 for none.
func (m *imager) Session(c *cache.Coder, s **cache.Session) {
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
	m.Fail(fmt.Errorf("session %d is not there", id))
}

// Lives says whether a session has not ended.
func (m *imager) Lives(s *cache.Session) bool { return m.byID[s.ID] != nil }

// What a request's answer goes through.
const (
	viaNone uint8 = iota
	viaQuiet
	viaMany
	viaTry
	viaNobody
)

// Via is what the request's answer goes through. Release-manys are answered before an image is made.
func (m *imager) Via(c *cache.Coder, re *cache.Request) {
	kind, place, key := viaNone, 0, 0
	s := SessionOf(re.Session)
	switch v := re.Via.(type) {
	case nil:
	case quiet:
		kind = viaQuiet
	case nobody:
		kind = viaNobody
	case *many:
		kind, place = viaMany, slices.Index(s.manys, v)
	case try:
		kind, place, key = viaTry, slices.Index(s.manys, v.m), v.n
	default:
		m.Fail(errUnderWay)
	}
	cache.Num(c, &kind)
	cache.Num(c, &place)
	cache.Num(c, &key)
	if !m.Reading {
		return
	}
	switch {
	case kind == viaQuiet:
		re.Via = quiet{}
	case kind == viaNobody:
		re.Via = nobody{}
	case kind == viaNone:
	case place < 0 || place >= len(s.manys) || key < 0 || key >= len(s.manys[place].keys):
		m.Fail(errUnderWay)
	case kind == viaMany:
		re.Via = s.manys[place]
	case kind == viaTry:
		re.Via = try{s.manys[place], key}
	}
}

// Class is what is counted together.
func (m *imager) Class(c *cache.Coder, class *uint16) {
	place := m.places[*class]
	cache.Num(c, &place)
	if !m.Reading {
		return
	}
	if place < 0 || place >= len(m.classes) {
		m.Fail(fmt.Errorf("class %d is not there", place))
		return
	}
	*class = m.classes[place]
}

// Classes returns all classes in the order of the image.
func (m *imager) Classes() []uint16 { return m.classes }

// Policy returns the namespace to which key is routed.
func (m *imager) Policy(key string) *cache.Namespace { return route(m.e.routes.Load(), key).table }

// Lease is when a lease is to be renewed.
func (m *imager) Lease(c *cache.Coder, l *cache.Lease, s *cache.Store) {
	r, tracked := &l.Renewal, l.Renewal.Index != 0
	c.Bool(&tracked)
	if !tracked {
		return
	}
	cache.Num(c, &r.Due)
	cache.Num(c, &r.Gen)
	if m.Reading {
		r.Shard = int16(m.shard)
		m.due = append(m.due, dueLease{l, (*m.e.units.Load())[s.ID]})
	}
}
