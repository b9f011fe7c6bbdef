package daemon

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// storedTime bounds one question of what a store knows.
const storedTime = 5 * time.Second

// storedRow is what a row takes in a frame at the most.
const storedRowSize = 4*protocol.MaxKey + 1100

// stored has a page of what the stores know fetched. It is answered from another
// goroutine: a store is slow.
func (s *Session) stored(q *protocol.Request, a *aftermath) {
	e := s.engine
	if e.ask == nil {
		s.refuse(q.ID, protocol.Unsupported, "this daemon cannot say what its stores know", a)
		return
	}
	n, cursor, ok := parseStored(string(q.After))
	if !ok {
		s.refuse(q.ID, protocol.Invalid, "after is not what an earlier page said", a)
		return
	}
	p := storedPage{s: s, id: q.ID, prefix: string(q.Prefix), store: n, cursor: cursor,
		limit: min(int(q.Limit), max(1, e.settings().MaxFrame/storedRowSize))}
	if s.questions.Add(1) > questionsMost {
		s.questions.Add(-1)
		s.refuse(q.ID, protocol.Limit, "this session asks for as many pages at once as it may", a)
		return
	}
	e.ask(func(lister func(*Unit) upstream.Lister) {
		defer s.questions.Add(-1)
		p.answer(lister)
	})
}

// questionsMost bounds the pages that one session asks for at once.
const questionsMost = 8

func parseStored(place string) (store int, cursor string, ok bool) {
	if place == "" {
		return 0, "", true
	}
	n, cursor, ok := strings.Cut(place, ":")
	store, err := strconv.Atoi(n)
	return store, cursor, ok && err == nil && store >= 0
}

// storedPage is one page under way.
type storedPage struct {
	s      *Session
	id     uint64
	prefix string
	store  int // the number of the store to go on with
	cursor string
	limit  int
}

// answer asks a store, and answers with what it knows.
func (p storedPage) answer(lister func(*Unit) upstream.Lister) {
	e := p.s.engine
	a := getAftermath()
	defer putAftermath(a)
	defer func() { e.finish(a, e.clock(), nil) }()
	units := *e.units.Load()
	var store upstream.Lister // looked up once, because a store can be dropped at any time
	for ; p.store < len(units); p.store, p.cursor = p.store+1, "" {
		if units[p.store] != nil {
			if store = lister(units[p.store]); store != nil {
				break
			}
		}
	}
	if store == nil {
		p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, nil, "") })
		return
	}
	u := units[p.store]
	ctx, cancel := context.WithTimeout(context.Background(), storedTime)
	defer cancel()
	locks, more, err := store.List(ctx, p.prefix, p.cursor, p.limit)
	if err != nil {
		p.s.refuse(p.id, protocol.Unavailable, fmt.Sprintf("store %s: %v", u.Name(), err), a)
		return
	}
	next := fmt.Sprint(p.store, ":", more)
	if more == "" {
		next = ""
		if p.store+1 < len(units) {
			next = fmt.Sprint(p.store+1, ":")
		}
	}
	var names map[string]upstream.Registration
	if r, ok := store.(upstream.Registrar); ok {
		names, _ = r.Registered(ctx, upstream.Daemons(locks)) // the locks are worth showing without names
	}
	rows := p.rows(u, locks, names)
	p.s.write(a, func(b []byte) []byte { return protocol.AppendStored(b, p.id, rows, next) })
}

// rows is what the peer may see of locks.
func (p storedPage) rows(u *Unit, locks []upstream.Lock, names map[string]upstream.Registration) (rows []protocol.StoredRow) {
	all := p.s.engine.routes.Load()
	for _, l := range locks {
		if !route(all, l.Key).allows(&p.s.peer) {
			continue
		}
		r := protocol.StoredRow{Key: clip(l.Key), Store: u.Name(), Name: clip(l.Name), Mode: protocol.Mode(l.Mode), Holder: clip(l.Holder),
			Left: millis(l.Left), Waiters: int64(l.Waiters), Base: l.Base}
		if l.Foreign || l.Daemon != "" {
			h := p.s.engine.holderThere(&l, names)
			h.Name, h.Left = "", -1 // the row has both
			r.By = []protocol.Holder{h}
		}
		switch {
		case l.Foreign:
			r.Whose = protocol.StoredForeign
		case l.Mine && p.s.engine.knowsKey(u, l.Key):
			r.Whose = protocol.StoredHere
		case l.Mine:
			r.Whose = protocol.StoredLeft
		}
		rows = append(rows, r)
	}
	return rows
}

// clip bounds what a store says, whose names are not ours to bound.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for len(s) > protocol.MaxKey+64 {
		s = s[:len(s)-1]
	}
	return strings.ToValidUTF8(s, "")
}

// knowsKey says whether this host has, or may have, a lease on a key at a store.
func (e *Engine) knowsKey(u *Unit, key string) bool {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	return sh.table.KnowsKey(u.core, key)
}
