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

// This file answers the request stored, which lists the locks that stores have.

// storedTime bounds one query of a store's list.
const storedTime = 5 * time.Second

// storedRowSize is the largest size of a row in a frame.
const storedRowSize = 4*protocol.MaxKey + 1100

// stored answers with a page of the locks that the stores list. Another goroutine sends the answer,
// because a store may be slow.
func (s *Session) stored(q *protocol.Request, a *followUp) {
	e := s.engine
	if e.ask == nil {
		s.refuse(q.ID, protocol.Unsupported, "this daemon cannot list the locks of its stores", a)
		return
	}
	place, cursor, ok := parseStored(string(q.After))
	if !ok {
		s.refuse(q.ID, protocol.Invalid, "after is not what an earlier page said", a)
		return
	}
	p := storedPage{s: s, id: q.ID, prefix: string(q.Prefix), place: place, cursor: cursor,
		limit: min(int(q.Limit), max(1, s.frameLimit()/storedRowSize))}
	if s.queries.Add(1) > maxQueries {
		s.queries.Add(-1)
		s.refuse(q.ID, protocol.Limit, "too many concurrent store queries on this session", a)
		return
	}
	e.ask(func(ctx context.Context, of CapabilitiesOf) (then func(context.Context)) {
		defer s.queries.Add(-1)
		p.answer(ctx, of)
		return func(context.Context) {}
	})
}

// maxQueries bounds the store queries in progress for one session.
const maxQueries = 8

func parseStored(after string) (place int, cursor string, ok bool) {
	if after == "" {
		return 0, "", true
	}
	n, cursor, ok := strings.Cut(after, ":")
	place, err := strconv.Atoi(n)
	return place, cursor, ok && err == nil && place >= 0
}

// maxParts is the number of places that a store has in the order of the pages: one for each part.
// The two stores of a pair are listed separately, under their own names.
const maxParts = 2

// storedPage is one page in progress.
type storedPage struct {
	s      *Session
	id     uint64
	prefix string
	place  int // where to continue: maxParts times a store's number, plus the number of its part
	cursor string
	limit  int
}

// answer reads the list of a store, and answers with its rows.
func (p storedPage) answer(ctx context.Context, of CapabilitiesOf) {
	e := p.s.engine
	a := getFollowUp()
	defer putFollowUp(a)
	defer func() { e.finish(a, e.clock(), nil) }()
	storeLanes := *e.storeLanes.Load()
	sl, store := p.find(storeLanes, of)
	if store.Lister == nil {
		p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, nil, "") })
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storedTime)
	defer cancel()
	locks, more, err := store.Lister.List(ctx, p.prefix, p.cursor, p.limit)
	if err != nil {
		p.s.refuse(p.id, protocol.Unavailable,
			fmt.Sprintf("store %s: %v", p.name(sl), queryError(ctx, err)), a)
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
	if r := store.Registrar; r != nil {
		names, _ = r.Registered(ctx, upstream.Daemons(locks)) // after an error, names are missing
	}
	rows := p.rows(storeLanes, locks, names)
	p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, rows, next) })
}

// find moves p to the first part at or behind its place that can list its locks. store has no
// Lister if there is none. It reads the capabilities of each store once, because a store can be
// dropped at any time.
func (p *storedPage) find(storeLanes []*StoreLane, of CapabilitiesOf) (
	sl *StoreLane, store upstream.Capabilities,
) {
	for ; p.place < maxParts*len(storeLanes); p.place, p.cursor = p.place+1, "" {
		if sl = storeLanes[p.place/maxParts]; sl == nil {
			continue
		}
		part := p.place % maxParts
		if store = of(sl); store.Pair != nil {
			store = store.Pair[part].Capabilities()
		} else if part > 0 {
			continue
		}
		if store.Lister != nil {
			return sl, store
		}
	}
	return nil, upstream.Capabilities{}
}

// name returns the name, in the configuration, of the part of sl that p is at.
func (p *storedPage) name(sl *StoreLane) string {
	if parts := sl.parts.Load(); parts != nil && len(*parts) > 1 {
		return (*parts)[p.place%maxParts].Name
	}
	return sl.Name()
}

// listedBefore reports whether an earlier part has the same locks as the part that p is at. Then
// the earlier part lists the locks of other hosts, and each part lists this host's own.
func (p *storedPage) listedBefore(storeLanes []*StoreLane) bool {
	seen := map[string]bool{}
	for i, sl := range storeLanes[:min(len(storeLanes), p.place/maxParts+1)] {
		if sl == nil || sl.parts.Load() == nil {
			continue
		}
		for j, part := range *sl.parts.Load() {
			if i*maxParts+j == p.place {
				return seen[part.Place]
			}
			seen[part.Place] = true
		}
	}
	return false
}

// rows returns the rows of the locks that the peer may see. While keys move between stores, this
// daemon may have opened the same store several times. Each of these lists the locks of the others
// as if they belonged to another daemon; rows leaves them out.
func (p *storedPage) rows(storeLanes []*StoreLane, locks []upstream.Lock,
	names map[string]upstream.Registration,
) (rows []protocol.StoredRow) {
	e, sl, before := p.s.engine, storeLanes[p.place/maxParts], p.listedBefore(storeLanes)
	all := e.routes.Load()
	for _, l := range locks {
		if !routeFor(all, l.Key).allows(&p.s.peer) {
			continue
		}
		if by, ok := names[l.Daemon]; !l.Mine && (before || ok && by == e.self) {
			continue
		}
		r := protocol.StoredRow{Key: clip(l.Key), Store: p.name(sl), Name: clip(l.Name),
			Mode: l.Mode, Holder: clip(l.Holder),
			Left: Millis(l.Left), Waiters: int64(l.Waiters), Base: l.Base}
		if l.Foreign || l.Daemon != "" {
			h := e.holderThere(&l, names)
			h.Name, h.Left = "", -1 // the row has both
			r.By = []protocol.Holder{h}
		}
		switch {
		case l.Foreign:
			r.Whose = protocol.StoredForeign
		case l.Mine && e.knowsKey(sl, l.Key):
			r.Whose = protocol.StoredHere
		case l.Mine:
			r.Whose = protocol.StoredLeft
		}
		rows = append(rows, r)
	}
	return rows
}

// clip shortens a name that comes from a store.
func clip(s string) string { return shorten(s, protocol.MaxKey+64) }

// shorten returns a text that comes from a store as text for clients: UTF-8, of up to limit bytes.
func shorten(s string, limit int) string {
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// knowsKey reports whether this host has, or may have, a lease on a key at a store.
func (e *Engine) knowsKey(sl *StoreLane, key string) bool {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.KnowsKey(sl.core, key)
}
