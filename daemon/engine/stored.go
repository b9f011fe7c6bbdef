package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// storedTime bounds one query of a store's list.
const storedTime = 5 * time.Second

// storedRowSize is the largest size of a row in a frame.
const storedRowSize = 4*protocol.MaxKey + 1100

// stored answers with a page of the locks that the stores list. Another goroutine sends the answer, because a store may
// be slow.
func (s *Session) stored(q *protocol.Request, a *followUp) {
	e := s.engine
	if e.ask == nil {
		s.refuse(q.ID, protocol.Unsupported, "this daemon cannot say what its stores know", a)
		return
	}
	place, cursor, ok := parseStored(string(q.After))
	if !ok {
		s.refuse(q.ID, protocol.Invalid, "after is not what an earlier page said", a)
		return
	}
	p := storedPage{s: s, id: q.ID, prefix: string(q.Prefix), place: place, cursor: cursor,
		limit: min(int(q.Limit), max(1, s.frameLimit()/storedRowSize))}
	if s.questions.Add(1) > maxQuestions {
		s.questions.Add(-1)
		s.refuse(q.ID, protocol.Limit, "this session asks for as many pages at once as it may", a)
		return
	}
	e.ask(func(ctx context.Context, lister func(*StoreLane) upstream.Lister) (then func(context.Context)) {
		defer s.questions.Add(-1)
		p.answer(ctx, lister)
		return func(context.Context) {}
	})
}

// maxQuestions bounds the store queries in progress for one session.
const maxQuestions = 8

func parseStored(after string) (place int, cursor string, ok bool) {
	if after == "" {
		return 0, "", true
	}
	n, cursor, ok := strings.Cut(after, ":")
	place, err := strconv.Atoi(n)
	return place, cursor, ok && err == nil && place >= 0
}

// paired is a store made of two stores. Each of them is listed separately, under its own name.
type paired interface{ Pair() [2]upstream.Store }

// maxParts is the number of places that a store has in the order of the pages: one for each part.
const maxParts = 2

// storedPage is one page in progress.
type storedPage struct {
	s      *Session
	id     uint64
	prefix string
	place  int // the part of a store to continue with: maxParts times the store's number, plus the part's number
	cursor string
	limit  int
}

// answer reads the list of a store, and answers with its rows.
func (p storedPage) answer(ctx context.Context, lister func(*StoreLane) upstream.Lister) {
	e := p.s.engine
	a := getFollowUp()
	defer putFollowUp(a)
	defer func() { e.finish(a, e.clock(), nil) }()
	storeLanes := *e.storeLanes.Load()
	u, store := p.find(storeLanes, lister)
	if store == nil {
		p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, nil, "") })
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storedTime)
	defer cancel()
	locks, more, err := store.List(ctx, p.prefix, p.cursor, p.limit)
	if err != nil {
		p.s.refuse(p.id, protocol.Unavailable, fmt.Sprintf("store %s: %v", p.name(u), queryError(ctx, err)), a)
		return
	}
	next := fmt.Sprint(p.place, ":", more)
	if more == "" {
		next = ""
		if p.place+1 < maxParts*len(storeLanes) {
			next = fmt.Sprint(p.place+1, ":")
		}
	}
	var names map[string]upstream.Registration
	if r, ok := store.(upstream.Registrar); ok {
		names, _ = r.Registered(ctx, upstream.Daemons(locks)) // the locks are worth showing without names
	}
	rows := p.rows(storeLanes, locks, names)
	p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, rows, next) })
}

// find moves p to the first part at or behind its place that can list its locks. store is nil if there is
// none. It looks each store up once, because a store can be dropped at any time.
func (p *storedPage) find(storeLanes []*StoreLane, lister func(*StoreLane) upstream.Lister) (u *StoreLane, store upstream.Lister) {
	for ; p.place < maxParts*len(storeLanes); p.place, p.cursor = p.place+1, "" {
		if u = storeLanes[p.place/maxParts]; u == nil {
			continue
		}
		l, part := lister(u), p.place%maxParts
		if two, ok := l.(paired); ok {
			store, _ = two.Pair()[part].(upstream.Lister)
		} else if part == 0 {
			store = l
		}
		if store != nil {
			return u, store
		}
	}
	return nil, nil
}

// name returns the name, in the configuration, of the part of u that p is at.
func (p *storedPage) name(u *StoreLane) string {
	if parts := u.parts.Load(); parts != nil && len(*parts) > 1 {
		return (*parts)[p.place%maxParts].Name
	}
	return u.Name()
}

// again reports whether an earlier part has the same locks as the part that p is at. Then the earlier part lists the
// locks of other hosts, and each part lists this host's own.
func (p *storedPage) again(storeLanes []*StoreLane) bool {
	seen := map[string]bool{}
	for i, u := range storeLanes[:min(len(storeLanes), p.place/maxParts+1)] {
		if u == nil || u.parts.Load() == nil {
			continue
		}
		for j, part := range *u.parts.Load() {
			if i*maxParts+j == p.place {
				return seen[part.Place]
			}
			seen[part.Place] = true
		}
	}
	return false
}

// rows returns the rows of the locks that the peer may see. While keys move between stores, this daemon may have
// opened the same store several times. To each of these, the locks of the others look like those of another daemon;
// rows leaves them out.
func (p *storedPage) rows(storeLanes []*StoreLane, locks []upstream.Lock, names map[string]upstream.Registration) (rows []protocol.StoredRow) {
	e, u, again := p.s.engine, storeLanes[p.place/maxParts], p.again(storeLanes)
	all := e.routes.Load()
	for _, l := range locks {
		if !routeFor(all, l.Key).allows(&p.s.peer) {
			continue
		}
		if by, ok := names[l.Daemon]; !l.Mine && (again || ok && by == e.self) {
			continue
		}
		r := protocol.StoredRow{Key: clip(l.Key), Store: p.name(u), Name: clip(l.Name), Mode: protocol.Mode(l.Mode), Holder: clip(l.Holder),
			Left: Millis(l.Left), Waiters: int64(l.Waiters), Base: l.Base}
		if l.Foreign || l.Daemon != "" {
			h := e.holderThere(&l, names)
			h.Name, h.Left = "", -1 // the row has both
			r.By = []protocol.Holder{h}
		}
		switch {
		case l.Foreign:
			r.Whose = protocol.StoredForeign
		case l.Mine && e.knowsKey(u, l.Key):
			r.Whose = protocol.StoredHere
		case l.Mine:
			r.Whose = protocol.StoredLeft
		}
		rows = append(rows, r)
	}
	return rows
}

// clip shortens a name that comes from a store.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for len(s) > protocol.MaxKey+64 {
		s = s[:len(s)-1]
	}
	return strings.ToValidUTF8(s, "")
}

// knowsKey reports whether this host has, or may have, a lease on a key at a store.
func (e *Engine) knowsKey(u *StoreLane, key string) bool {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.KnowsKey(u.core, key)
}
