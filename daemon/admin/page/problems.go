package page

import (
	"cmp"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// The severities of a problem, which are classes of the style sheet.
const (
	critical = "critical"
	warning  = "warning"
	good     = "good"
)

// The limits above which a number is a problem.
const (
	longWait    = 5 * time.Second  // of a waiter
	lateRenewal = time.Second      // of the most urgent renewal of a store
	recentLoss  = 10 * time.Minute // since a loss
	maxKeys     = 5                // in the list, for each kind of problem
)

// problem is a line of the list at the top. Key is the key with the problem, if there is one.
type problem struct{ Severity, Key, Title, Detail string }

// problems returns the problems, the worst first. Without any, it returns one entry that says so.
func (p *Page) problems() (list []problem) {
	add := func(severity, key, title, detail string) {
		list = append(list, problem{severity, key, title, detail})
	}
	down := slices.ContainsFunc(p.Stores, func(s engine.ViewStore) bool { return !s.Up })
	if p.NotReady != "" && !down { // otherwise that is why
		add(critical, "", "No new locks can be acquired", p.NotReady)
	}
	for i := range p.Stores {
		s := &p.Stores[i]
		switch {
		case !s.Up:
			add(critical, "", "Store "+s.Name+" is down", s.Error)
		case s.Late >= lateRenewal.Milliseconds():
			add(critical, "", "Renewals at store "+s.Name+" are "+duration(s.Late)+" late", "")
		}
	}
	p.holdProblems(add)
	lost := 0
	for i := range p.Lost {
		if p.At.Sub(p.Lost[i].At) < recentLoss {
			lost++
		}
	}
	if lost > 0 {
		l := &p.Lost[0]
		add(warning, "", count(lost, "lock")+" lost in the last "+duration(recentLoss.Milliseconds()),
			"the last: "+l.Key+", "+l.Reason)
	}
	p.waitProblems(add)
	// critical first
	slices.SortStableFunc(list, func(a, b problem) int { return cmp.Compare(a.Severity, b.Severity) })
	if list == nil {
		list = []problem{{Severity: good, Title: "No problems",
			Detail: "All stores answer, renewals are in time, and no client has waited long."}}
	}
	return list
}

type adder func(severity, key, title, detail string)

// holdProblems adds the holds that are renewed late, degraded or closed by force.
func (p *Page) holdProblems(add adder) {
	more := 0
	for i := range p.Holds {
		h := &p.Holds[i]
		severity, title := warning, ""
		switch {
		case h.Late():
			severity, title = critical, "the renewal is late: "+duration(h.Left)+" of "+
				duration(h.TTL)+" left"
		case h.Forced:
			title = "unlocked by force, closed for " + duration(h.Left)
		case h.Degraded:
			title = "granted by this host alone, without a fence"
		default:
			continue
		}
		if more++; more <= maxKeys {
			add(severity, h.Key, title, "held by "+clientOf(&h.ViewWho))
		}
	}
	if more > maxKeys {
		add(warning, "", "and "+count(more-maxKeys, "hold")+" more", "")
	}
}

// waitProblems adds the keys whose waiters have waited long, those with the longest wait first.
func (p *Page) waitProblems(add adder) {
	more := 0
	queues := p.queues()
	slices.SortStableFunc(queues, func(a, b *queue) int { return cmp.Compare(b.longest, a.longest) })
	for _, q := range queues {
		if q.longest < longWait.Milliseconds() {
			break
		}
		if more++; more <= maxKeys {
			add(warning, q.key, count(q.waiters, "waiter")+", the first for "+duration(q.longest),
				q.holder())
		}
	}
	if more > maxKeys {
		add(warning, "", "and "+count(more-maxKeys, "contended key")+" more", "")
	}
}

// queue has the shown waiters of one key.
type queue struct {
	key, mode string
	waiters   int
	longest   int64
	first     *engine.ViewWaiter // with the lowest place
}

func (q *queue) holder() string {
	switch w := q.first; {
	case w.Behind != nil:
		return "held by " + clientOf(w.Behind) + ", " + whoIs(w.Behind)
	case w.Holder != nil && w.Holder.Held >= 0:
		return "held by " + w.Holder.String() + " for " + duration(w.Holder.Held)
	case w.Holder != nil:
		return "held by " + w.Holder.String()
	}
	return ""
}

// queues groups the shown waiters by key, in the order of their first waiter.
func (p *Page) queues() (list []*queue) {
	type id struct {
		key    string
		permit bool
	}
	at := map[id]*queue{}
	for i := range p.Waiters {
		w := &p.Waiters[i]
		k := id{w.Key, w.Mode == permit}
		q := at[k]
		if q == nil {
			q = &queue{key: w.Key, mode: w.Mode, first: w}
			at[k] = q
			list = append(list, q)
		}
		q.waiters++
		q.longest = max(q.longest, w.Waited)
		if w.Place < q.first.Place {
			q.first = w
		}
	}
	return list
}
