package chaos

import (
	"slices"
	"strings"
	"time"
)

// deed is one thing that an operator has done to a daemon or to a store.
type deed struct {
	what  string
	site  *site  // nil if it was done to a store
	depot *depot // nil if it was done to a daemon
	span
}

// doing records that something is being done, until over is called.
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

// lagMost is the maximum time between a deed and the moment at which a busy machine shows its
// consequences.
const lagMost = int64(10 * time.Second)

// wasDone reports whether a deed for which is returns true was done in a span, or shortly before.
func (s *storm) wasDone(at span, is func(*deed) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.deeds, func(d *deed) bool {
		return is(d) && d.from <= at.to && (d.to == forever || d.to+lagMost >= at.from)
	})
}

// did returns a function that reports whether a deed was done to st, and has one of words in its
// name.
func (st *site) did(words ...string) func(*deed) bool {
	return func(d *deed) bool {
		return d.site == st && slices.ContainsFunc(words, func(w string) bool {
			return strings.Contains(d.what, w)
		})
	}
}

// setting is a configuration, and the time in which the daemon may have used it.
type setting struct {
	span
	rooms map[string]room
}

// tries records that the daemon may use l from now on.
func (st *site) tries(l *layout) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.settings = append(st.settings, setting{span{now(), forever}, l.rooms})
}

// uses records that the daemon has used l since from, and does not use any other configuration now.
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

// had reports whether the namespace of a key may have been a room for which is returns true, at any
// time in a span.
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

// away reports whether a store of key may have been unable to answer between from and now, or had
// just returned. The embedded store always answers.
func (st *site) away(key string, from int64) bool {
	at := span{from, now()}
	return slices.ContainsFunc(st.s.depots, func(d *depot) bool {
		return d.troubled(from) && st.had(key, at, d.in)
	})
}

// in reports whether a namespace is kept in d, alone or together with another store.
func (d *depot) in(r room) bool { return r.store == d.name || r.both == d.name }

// judgeLosses checks that a deed explains each loss. A busy machine also explains a loss by expiry,
// or a loss whose client has received nothing.
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

// accounts reports whether a deed explains the loss of p.
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
	case "connection": // a takeover keeps connections
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
