package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file computes the validity that keepalives state, and ends holds whose owners are silent.

// Watermark has the values from which the keepalive of a session follows.
type Watermark struct {
	Until     int64 // the earliest deadline of their leases; Forever without holds
	TTL       int64 // the shortest of their TTLs; 0 without holds
	Heartbeat int64 // the shortest heartbeat that their namespaces require; 0 for none
}

// Join merges o, the watermark of other holds, into w.
func (w *Watermark) Join(o Watermark) {
	w.Until = min(w.Until, o.Until)
	w.TTL, w.Heartbeat = least(w.TTL, o.TTL), least(w.Heartbeat, o.Heartbeat)
}

// least returns the smaller of a and b, ignoring a 0.
func least(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// lifetime returns how long l lasts if it is renewed now and never again.
func (t *Table) lifetime(l *Lease) int64 {
	if l.state == stateHeld {
		return l.st.Validity(l.ttl)
	}
	return l.ttl
}

// Survey visits up to limit holds of s in this shard, and joins their watermark at now into w. It
// resumes where it stopped, or starts at the first hold if begin is true. It returns the unused
// budget; if that is 0, holds may remain. It does not visit holds that were granted after the
// survey began. Whatever happens until the survey ends, no visited hold ends before w.Until.
func (t *Table) Survey(s *Session, begin bool, w *Watermark, limit int, now int64) (left int) {
	x := &s.index[t.cfg.Shard]
	if begin {
		x.survey = x.holds.first
	}
	for ; x.survey != nil && limit > 0; limit-- {
		h := x.survey
		x.survey = x.holds.next(h)
		if h.forced {
			continue
		}
		l, ttl := h.l, t.lifetime(h.l)
		l.extendDegraded(now, ttl)
		w.Join(Watermark{t.deadline(l), ttl, int64(l.ns.Heartbeat)})
	}
	return limit
}

// Silence says when a session loses holds if it stays silent.
type Silence struct {
	// Again is when LoseSilent has to be called next if the session stays silent; Forever for
	// never.
	Again int64
	Until int64 // no other hold of the session ends by silence before; Forever for never
}

// LoseSilent ends the overdue holds of a session: their namespaces require a heartbeat, and none
// has arrived since heard. It spares a hold while a validity lasts that was stated before its
// namespace required the heartbeat. The owner of such a hold is told of the loss earlier, by lead,
// so that keepalives can state a later time for the session's other holds. Its key stays closed
// until that validity ends.
func (t *Table) LoseSilent(s *Session, heard, lead, now int64, out *Effects) Silence {
	is := Silence{Forever, Forever}
	var freed []*Lease // advanced at the end, because the advance of one may end other holds of s
	for h := range s.index[t.cfg.Shard].holds.all() {
		l := h.l
		due, spared := heard+int64(l.ns.Heartbeat), int64(0)
		if l.optional != nil {
			spared = l.optional.silentFrom
		}
		switch {
		case l.ns.Heartbeat == 0 || h.forced && now < spared:
		case now < max(due, spared-lead):
			is.Again = min(is.Again, max(due, spared-lead))
			is.Until = min(is.Until, max(due, spared))
		case now < spared && l.keepOf(h) < spared:
			t.tellLost(h, protocol.LostSilent, now, out)
			t.force(h)
			h.end = min(h.end, spared)
			l.minEnd = min(l.minEnd, h.end)
			freed = append(freed, l)
		default:
			t.loseSilent(h, now, out)
			freed = append(freed, l)
		}
	}
	t.advanceEach(freed, now, out)
	return is
}
