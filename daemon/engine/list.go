package engine

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// list answers with one page of rows, in the order of the shards and then of the keys. A page's
// place is the shard's number and the place in the shard.
func (s *Session) list(q *protocol.Request, now int64, a *followUp) {
	e := s.engine
	first, after, ok := parsePlace(string(q.After))
	if !ok {
		s.refuse(q.ID, protocol.Invalid, "after is not what an earlier page said", a)
		return
	}
	all := e.routes.Load()
	show := func(key string) bool { return routeFor(all, key).allows(&s.peer) }
	var rows []protocol.Row
	var size, last int
	var found []cache.Row
	next, end := "", "" // end is the place of the last row
	for i := first; i < shards && next == ""; i++ {
		sh := e.lock(i)
		found = sh.table.Rows(found[:0], string(q.Prefix), after, int(q.Limit)-len(rows)+1, now,
			show)
		sh.mu.Unlock()
		for n := range found {
			if len(rows) == int(q.Limit) ||
				len(rows) > 0 && size+len(found[n].Key)+rowSize > s.frameLimit() {
				next = place(last, end)
				break
			}
			size += len(found[n].Key) + rowSize
			rows = append(rows, wireRow(&found[n]))
			last, end = i, found[n].Place()
		}
		after = ""
	}
	id := q.ID
	s.write(a, func(b []byte) []byte { return protocol.AppendList(b, id, rows, next) })
}

// rowSize is the largest size of a row in a frame, without its key.
const rowSize = 64 + 2*protocol.MaxName

func wireRow(r *cache.Row) protocol.Row {
	w := protocol.Row{Key: r.Key, Mode: r.Mode, Holders: uint64(r.Holders),
		Waiters: uint64(r.Waiters), Fence: r.Fence, Left: Millis(r.Left)}
	if r.Holder != nil {
		who := WhoIs(r.Holder)
		w.Session, w.PID, w.Client = who.Session, uint64(max(0, who.PID)), who.Client
		if w.Detached = who.Session == 0; w.Detached {
			w.UID = int64(who.UID)
		}
	}
	return w
}

// place returns where a page continues: at a shard, and a place among its rows.
func place(shard int, row string) string {
	return string([]byte{byte('0' + shard/10), byte('0' + shard%10), ':'}) + row
}

func parsePlace(p string) (shard int, key string, ok bool) {
	if p == "" {
		return 0, "", true
	}
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	if len(p) < 3 || !digit(p[0]) || !digit(p[1]) || p[2] != ':' {
		return 0, "", false
	}
	shard = int(p[0]-'0')*10 + int(p[1]-'0')
	return shard, p[3:], shard < shards
}
