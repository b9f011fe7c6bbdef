package cache

import "slices"

// This file has the parts of a snapshot besides leases: stores, statistics, and the habits of keys.

func (m *snapshotCoder) stores() {
	all := slices.DeleteFunc(slices.Clone(m.t.stores),
		func(st *storeRecord) bool { return st == nil })
	List(m.Coder, &all, func(p **storeRecord) {
		var s *StoreTraits
		if !m.Reading {
			s = (*p).StoreTraits
		}
		if m.x.Store(m.Coder, &s); m.Reading {
			*p = m.t.store(s)
		}
		st := *p
		Num(m.Coder, &st.sessionNo)
		Num(m.Coder, &st.sessionUntil)
		Num(m.Coder, &st.floor)
		Num(m.Coder, &st.past)
		Num(m.Coder, &st.trip)
		Num(m.Coder, &st.downAt)
		m.Error(&st.err)
		for _, n := range []*uint64{&st.stats.Renewed, &st.stats.NotHeld, &st.stats.Unanswered,
			&st.stats.Expired} {
			Num(m.Coder, n)
		}
		m.histogram(&st.stats.Slack)
	})
}

func (m *snapshotCoder) stats() {
	for _, class := range m.x.Classes() {
		s, has := &Stats{}, false
		if !m.Reading && int(class) < len(m.t.stats) {
			s = m.t.stats[class]
			has = *s != Stats{}
		}
		if m.Bool(&has); !has {
			continue
		}
		if m.Reading {
			s = m.t.statsOf(&Namespace{Class: class})
		}
		for _, list := range [][]uint64{s.Acquires[:], s.Releases[:], s.Lost[:]} {
			m.counts(list)
		}
		for _, n := range []*uint64{&s.FoundGone, &s.Contended, &s.Handoffs, &s.Lingered,
			&s.Degraded} {
			Num(m.Coder, n)
		}
		m.histogram(&s.Wait)
		m.histogram(&s.Hold)
	}
}

// counts writes or reads counters. It writes a run of zeros as its length, because most are 0.
func (m *snapshotCoder) counts(list []uint64) {
	for i := 0; i < len(list); i++ {
		Num(m.Coder, &list[i])
		if list[i] != 0 {
			continue
		}
		var run int
		if !m.Reading {
			for i+1+run < len(list) && list[i+1+run] == 0 {
				run++
			}
		}
		Num(m.Coder, &run)
		i += max(run, 0)
	}
}

func (m *snapshotCoder) histogram(h *Histogram) {
	Num(m.Coder, &h.Sum)
	Num(m.Coder, &h.Zero)
	m.counts(h.Buckets[:])
}

// habits writes or reads the habits, beginning with the one that would be forgotten first.
func (m *snapshotCoder) habits() {
	var keys []string
	if lru := m.t.habits.lru; lru != nil {
		keys = lru.Keys()
	}
	List(m.Coder, &keys, func(key *string) {
		m.String(key)
		h := m.t.habits.get(*key) // the order of the writer's keys does not change by this
		if h == nil {
			h = m.t.habits.add(*key, m.t.cfg.Habits)
			m.t.habits.evicted = nil // the lease lingers until its idleUntil
		}
		lingers := h.lingers != nil
		m.Bool(&lingers)
		if lingers {
			h.lingers = m.t.locks[*key].lease()
		}
		Num(m.Coder, &h.freed)
		Num(m.Coder, &h.banned)
		Num(m.Coder, &h.again)
		Num(m.Coder, &h.later)
		Num(m.Coder, &h.others)
	})
}
