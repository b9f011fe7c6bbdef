package daemon

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Moved is a held lease at one store whose key is routed to another one.
type Moved struct {
	Key      string
	From, To upstream.Store
}

// Moved returns the held leases whose keys a reload has routed to another store. They stay where they are
// until they are released.
func (d *Daemon) Moved() (list []Moved) {
	stores := make(map[int]upstream.Store)
	for _, v := range d.stores.list() {
		stores[v.unit.core.ID] = v.Store.Store
	}
	e := d.engine
	for i := range e.shards {
		sh := e.lock(i)
		sh.table.EachMoved(func(key string, from, to *cache.Store) {
			list = append(list, Moved{key, stores[from.ID], stores[to.ID]})
		})
		sh.mu.Unlock()
	}
	return list
}
