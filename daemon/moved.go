package daemon

import (
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// Moved is a held lease at one store whose key is routed to another one.
type Moved struct {
	Key      string
	From, To upstream.Store
}

// Moved returns the held leases whose keys a reload has routed to another store. They stay at their
// stores until they are released.
func (d *Daemon) Moved() (list []Moved) {
	stores := make(map[*engine.StoreLane]upstream.Store)
	for _, v := range d.stores.list() {
		stores[v.lane] = v.Store
	}
	d.engine.EachMoved(func(key string, from, to *engine.StoreLane) {
		list = append(list, Moved{key, stores[from], stores[to]})
	})
	return list
}
