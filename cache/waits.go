package cache

import "iter"

// Wait is an owner's wait for a hold of another owner.
type Wait struct {
	Request   uint64
	Reply     any // the request's InternalReply
	Owner     uint64
	Holder    *Session
	HoldOwner uint64
}

// Waits yields each wait of s in this table with each hold that it waits for. The first value is
// the key.
func (t *Table) Waits(s *Session) iter.Seq2[string, Wait] {
	return func(yield func(string, Wait) bool) {
		for w := range s.index[t.cfg.Shard].waits.all() {
			for h := range w.l.holds.all() {
				if h.s == s && h.owner == w.owner || h.forced {
					continue
				}
				if !yield(w.l.key, Wait{w.req.ID, w.req.InternalReply, w.owner, h.s, h.owner}) {
					return
				}
			}
		}
	}
}
