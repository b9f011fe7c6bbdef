package chaos

import (
	"slices"
	"strings"
	"time"
)

// deed is one thing that an operator did, to a daemon or to a store.
type deed struct {
	what  string
	site  *site  // nil: to a store
	depot *depot // nil: to a daemon
	span
}

// doing notes that something is being done until over is called.
func (s *storm) doing(what string, st *site, d *depot) (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := &deed{what, st, d, span{now(), forever}}
	s.deeds = append(s.deeds, one)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		one.to = now()
	}
}

// lagMost is how much later than a deed its consequences may be seen on a busy machine.
const lagMost = int64(10 * time.Second)

// wasDone says whether something of which is is true was done in a time, or shortly before.
func (s *storm) wasDone(at span, is func(*deed) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.deeds, func(d *deed) bool {
		return is(d) && d.from <= at.to && (d.to == forever || d.to+lagMost >= at.from)
	})
}

// did says that a deed was done to a daemon and has one of some words in its name.
func (st *site) did(words ...string) func(*deed) bool {
	return func(d *deed) bool {
		return d.site == st && slices.ContainsFunc(words, func(w string) bool {
			return strings.Contains(d.what, w)
		})
	}
}

// setting is a configuration and the time in which the daemon may have used it.
type setting struct {
	span
	rooms map[string]room
}

// tries notes that the daemon may use l from now on.
func (st *site) tries(l *layout) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.settings = append(st.settings, setting{span{now(), forever}, l.rooms})
}

// uses notes that the daemon uses l since from, and no other configuration any more.
func (st *site) uses(l *layout, from int64) {
	st.layout = l
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for i := range st.settings {
		if st.settings[i].to == forever {
			st.settings[i].to = now()
		}
	}
	st.settings = append(st.settings, setting{span{from, forever}, l.rooms})
}

// had says whether the namespace of a key may have been one of which is is true, in a time.
func (st *site) had(key string, at span, is func(room) bool) bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return slices.ContainsFunc(st.settings, func(c setting) bool {
		if c.from > at.to || c.to < at.from {
			return false
		}
		prefix := ""
		for p := range c.rooms {
			if strings.HasPrefix(key, p) && len(p) > len(prefix) {
				prefix = p
			}
		}
		return is(c.rooms[prefix])
	})
}

// away says whether a store of key may not have answered between from and now, or was just coming
// back. The embedded store always answers.
func (st *site) away(key string, from int64) bool {
	at := span{from, now()}
	return slices.ContainsFunc(st.s.depots, func(d *depot) bool {
		return d.troubled(from) && st.had(key, at, d.in)
	})
}

// in says that a namespace is kept in a store, alone or with another one.
func (d *depot) in(r room) bool { return r.store == d.name || r.both == d.name }

// judgeLosses compares each loss with what was done. A lock that expired, or whose client has heard
// nothing, is one that a busy machine can cost.
func (s *storm) judgeLosses() {
	var v verdict
	for _, p := range s.history().ops() {
		if p.why != "" && !s.accounts(p) {
			v.fail("lost", "%s: %v is lost at %d for the reason %q, which nothing explains", p.key,
				p, p.lost, p.why)
		}
	}
	s.Violations = append(s.Violations, v.found...)
}

// accounts says whether something was done for which p may have been lost.
func (s *storm) accounts(p *op) bool {
	st := s.sites[p.host]
	at := span{max(p.seen, p.answered), p.lost}
	limited := func(by string) bool {
		return st.had(p.name, span{p.asked, p.lost}, func(r room) bool {
			return slices.ContainsFunc(r.more, func(f string) bool { return strings.HasPrefix(f, by) })
		})
	}
	kept := map[*depot]bool{}
	for _, d := range s.depots {
		kept[d] = st.had(p.name, span{0, p.lost}, d.in)
	}
	switch p.why {
	case "forced":
		return slices.ContainsFunc(s.forced, func(f forcedHold) bool {
			return f.site == st && f.key == p.name && f.from <= at.to && f.at+lagMost >= at.from
		})
	case "connection": // a takeover keeps them
		return s.wasDone(at, st.did("drain", "end at once", "kill", "successor stopped"))
	case "shutdown":
		return s.wasDone(at, st.did("drain", "end at once"))
	case "gone":
		return s.wasDone(at, func(d *deed) bool { return d.depot != nil && kept[d.depot] })
	case "session":
		return slices.ContainsFunc(s.depots, func(d *depot) bool { return d.ordered() && kept[d] }) ||
			s.wasDone(at, st.did("full disk"))
	case "too_long":
		return limited("max_hold")
	case "silent":
		return limited("heartbeat")
	}
	return true
}
