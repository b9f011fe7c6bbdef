package daemon

import (
	"os"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// View returns a view of the daemon. It locks no shard for longer than about a thousand rows take.
func (d *Daemon) View(q engine.ViewQuery) (engine.View, error) {
	if err := q.SetDefaults(); err != nil {
		return engine.View{}, err
	}
	t := d.Totals()
	v := engine.View{At: time.Now(), Version: d.cfg.Version, PID: os.Getpid(), Up: engine.Millis(d.clock() - d.began), Query: q, Stores: d.viewStores(&t),
		Totals: viewTotals(&t), Lost: d.history.lost(), History: d.history.series()}
	if err := d.Ready(); err != nil {
		v.NotReady = err.Error()
	}
	d.engine.View(q, &v)
	d.waitedFor.fill(d, v.Waiters)
	return v, nil
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

func (d *Daemon) viewStores(t *engine.Totals) []engine.ViewStore {
	list := []engine.ViewStore{}
	for i := range t.Stores {
		s := &t.Stores[i]
		v := engine.ViewStore{Name: s.Name, Up: s.Up, Connections: s.Connections, Leases: s.Held, Moved: s.Moved, Renewed: s.Renewed, NotHeld: s.NotHeld,
			Unanswered: s.Unanswered, Slack: median(&s.Slack), Flying: s.Main.Flying + s.Renewals.Flying, Queued: s.Main.Waiting + s.Renewals.Waiting}
		if u := d.engine.StoreNamed(s.Name); u != nil { // otherwise it has just been dropped
			v.Kind, v.Safety = u.Info().Name, u.Info().Safety
			if err := u.Down(); err != nil {
				v.Error = err.Error()
			}
		}
		list = append(list, v)
	}
	return list
}
