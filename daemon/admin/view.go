package admin

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// Viewer makes views of a daemon, and keeps the history that they show.
type Viewer struct {
	Engine  *engine.Engine
	Clock   upstream.Clock
	Began   int64 // when the daemon began, by Clock
	Version string
	Totals  func() engine.Totals
	Ready   func() error
	Query   func(engine.Query) // runs a query of a store, unless the daemon halts
	Frozen  func() bool        // a takeover is in progress, and waits for queries
	Halt    <-chan struct{}    // closed when the daemon halts

	history   history
	waitedFor waitedFor
}

// View returns the present state. It locks a shard for about a thousand rows at a time.
func (d *Viewer) View(q engine.ViewQuery) (engine.View, error) {
	if err := q.SetDefaults(); err != nil {
		return engine.View{}, err
	}
	t := d.Totals()
	v := engine.View{At: time.Now(), Version: d.Version, PID: os.Getpid(),
		Up: engine.Millis(d.Clock() - d.Began), Query: q, Stores: d.viewStores(&t),
		Totals: viewTotals(&t), Lost: d.history.lost(q.Key), History: d.history.series(),
		Namespaces: d.viewNamespaces(&t)}
	if err := d.Ready(); err != nil {
		v.NotReady = err.Error()
	}
	d.Engine.View(q, &v)
	if q.Key != "" {
		asked := []engine.ViewWaiter{{Key: q.Key}, {Key: q.Key, Mode: protocol.Permit.String()}}
		d.waitedFor.fill(d, asked)
		v.Holder = cmp.Or(asked[0].Holder, asked[1].Holder)
	}
	d.waitedFor.fill(d, v.Waiters)
	return v, nil
}

func (d *Viewer) viewNamespaces(t *engine.Totals) []engine.ViewNamespace {
	list := []engine.ViewNamespace{}
	for i := range t.Classes {
		c := &t.Classes[i]
		at := slices.IndexFunc(list, func(n engine.ViewNamespace) bool { return n.Prefix == c.Prefix })
		if at < 0 {
			at = len(list)
			list = append(list, engine.ViewNamespace{Prefix: c.Prefix,
				Store: d.Engine.StoreFor(c.Prefix).Name()})
		}
		n := &list[at]
		n.Held, n.Waiting = n.Held+c.Holds, n.Waiting+c.Waiters
		for _, lost := range c.Lost {
			n.Lost += lost
		}
	}
	return list
}

func viewTotals(t *engine.Totals) engine.ViewTotals {
	v := engine.ViewTotals{Sessions: t.Sessions, Oldest: engine.Millis(t.Oldest)}
	for i := range t.Classes {
		c := &t.Classes[i]
		v.Held += c.Holds
		v.Waiting += c.Waiters
		v.Granted += c.Acquires[0]
		v.Handoffs += c.Handoffs
		v.Contended += c.Contended
		for o := range c.Acquires {
			v.Acquires += c.Acquires[o]
		}
		for o := range c.Refused {
			v.Acquires += c.Refused[o]
		}
		for _, n := range c.Lost {
			v.Lost += n
		}
	}
	for i := range t.Stores {
		v.Expired += t.Stores[i].Expired
	}
	return v
}

func (d *Viewer) viewStores(t *engine.Totals) []engine.ViewStore {
	list := []engine.ViewStore{}
	for i := range t.Stores {
		s := &t.Stores[i]
		v := engine.ViewStore{Name: s.Name, Up: s.Up, Connections: s.Connections, Leases: s.Held,
			Moved: s.Moved, Renewed: s.Renewed, NotHeld: s.NotHeld,
			Unanswered: s.Unanswered, Slack: median(&s.Slack),
			Late:   engine.Millis(int64(max(0, s.Late))),
			Flying: s.Main.InFlight + s.Renewals.InFlight, Queued: s.Main.Waiting + s.Renewals.Waiting}
		if sl := d.Engine.StoreNamed(s.Name); sl != nil { // otherwise it has just been dropped
			v.Kind, v.Safety = sl.Info().Name, sl.Info().Safety
			if err := sl.Down(); err != nil {
				v.Error = err.Error()
			}
		}
		list = append(list, v)
	}
	return list
}
