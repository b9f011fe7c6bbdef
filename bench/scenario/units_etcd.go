package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// The sizes of what is measured on etcd.
const (
	sessionLong  = "60s" // for daemons whose periodic checks should not be visible
	sessionShort = "3s"  // for a daemon whose checks should be: each key once per second
	etcdLocks    = 4000
	etcdConns    = 200
	// etcd keeps the last 5,100 entries of its log in memory, whatever they are.
	logEntries = 8192
	logWriters = 128
	// Locks are watched after 100 ms, 2000 per second.
	ripeAll = 2500 * time.Millisecond
)

type etcdBill struct {
	*bill
	srv   *harness.Etcd
	cl    *clientv3.Client
	hosts twins
}

func (e *Env) etcdBill() (b *etcdBill, err error) {
	b = new(etcdBill)
	if b.srv, err = e.etcd(); err != nil {
		return nil, err
	}
	if b.cl, err = b.connect(); err == nil {
		b.hosts, err = e.twins("etcd://" + b.srv.Addr + "?ttl=" + sessionLong)
	}
	if err != nil {
		return nil, errors.Join(err, b.srv.Stop())
	}
	b.bill = e.newBill("etcd", b.srv.PID())
	return b, nil
}

func (b *etcdBill) end() {
	b.hosts.stop(b.e, unitsScene)
	b.cl.Close()
	http.DefaultClient.CloseIdleConnections()
	b.srv.Stop()
	b.bill.end()
}

// connect returns a client that checks its connection as the daemon does.
func (b *etcdBill) connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{b.srv.Addr}, DialTimeout: 10 * time.Second,
		Logger:            zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		PermitWithoutStream: true})
}

func etcdUnits(e *Env) error {
	b, err := e.etcdBill()
	if err != nil {
		return err
	}
	defer b.end()
	return inTurn(b.watches, b.locks, b.connections, b.keepAlives,
		func() error { return b.work(b.hosts) }, b.waits)
}

// metrics returns metrics of the server.
func (b *etcdBill) metrics(names ...string) ([]float64, error) {
	r, err := http.Get("http://" + b.srv.Addr + "/metrics")
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	values := make([]float64, len(names))
	for i, name := range names {
		_, rest, found := strings.Cut(string(text), "\n"+name+" ")
		line, _, _ := strings.Cut(rest, "\n")
		var bad error
		if values[i], bad = strconv.ParseFloat(line, 64); !found || bad != nil {
			err = errors.Join(err, fmt.Errorf("etcd says nothing of %s", name))
		}
	}
	return values, err
}

func (b *etcdBill) ranges() (float64, error) {
	v, err := b.metrics("etcd_mvcc_range_total")
	return v[0], err
}

// database returns the size of the data on disk, which is mapped into memory.
func (b *etcdBill) database() (float64, error) {
	v, err := b.metrics("etcd_mvcc_db_total_size_in_use_in_bytes")
	return v[0], err
}

// live returns the bytes that the last garbage collection has left, plus the stacks. The next
// collection comes when there is twice as much, and half of the stacks count for that. First, live
// replaces the entries of the log by empty ones, which also makes enough garbage.
func (b *etcdBill) live() (float64, error) {
	var wg sync.WaitGroup
	failed := make([]error, logWriters)
	for i := range logWriters {
		wg.Go(func() {
			for range b.e.some(logEntries) / logWriters {
				if _, err := b.cl.AlarmList(b.e.Ctx); err != nil {
					failed[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return 0, err
	}
	v, err := b.metrics("go_memstats_next_gc_bytes", "go_memstats_stack_inuse_bytes")
	return (v[0] + v[1]) / 2, err
}

// connections measures what an idle daemon has at etcd: a connection with a stream of keep-alives
// and one of watches.
func (b *etcdBill) connections() error {
	n := b.e.some(etcdConns)
	var cls []*clientv3.Client
	defer func() {
		for _, c := range cls {
			c.Close()
		}
	}()
	return b.weigh("a daemon's connection with its streams", n, b.live, func() error {
		for i := range n {
			c, err := b.connect()
			if err != nil {
				return err
			}
			cls = append(cls, c)
			k, err := newKeeping(b.e.Ctx, c)
			if err == nil {
				err = k.again()
			}
			if err == nil {
				_, err = newWatching(b.e.Ctx, c, fmt.Sprintf("/none/%d/", i))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// keepAlives measures keep-alives on connections of their own, one at a time on each.
func (b *etcdBill) keepAlives() error {
	ctx, cancel := context.WithCancel(b.e.Ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	u := new(churn)
	for range fleetHosts {
		c, err := b.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		k, err := newKeeping(ctx, c)
		if err != nil {
			return err
		}
		wg.Go(func() {
			for k.again() == nil {
				u.done.Add(1)
			}
		})
	}
	err := b.flow("a keep-alive", u.count)
	cancel() // before its connections are closed
	wg.Wait()
	return err
}

// ripens is how many locks a daemon begins to watch at a time.
const ripens = 100

// watches measures the memory of a watch on a stream with others, and the cost of beginning and
// ending one.
func (b *etcdBill) watches() error {
	dirs := make([]string, b.e.some(etcdLocks))
	for i := range dirs {
		dirs[i] = fmt.Sprintf("/locksidecar/bench:watch:%010d/", i)
	}
	ctx, cancel := context.WithCancel(b.e.Ctx)
	defer cancel()
	w, err := newWatching(ctx, b.cl, "/none/")
	if err != nil {
		return err
	}
	if err := b.weigh("a watch of a lock", len(dirs), b.live, func() error {
		for some := range slices.Chunk(dirs, ripens) {
			if err := w.begin(some...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	u := new(churn)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for w.begin(dirs[:ripens]...) == nil && w.end(ripens) == nil {
			u.done.Add(ripens)
		}
	})
	return b.flow("a watch begun and ended", u.count)
}

// locks measures the locks of one host: their size, the cost of reading one after the other, and
// the cost of reading all their names at once.
func (b *etcdBill) locks() error {
	n := b.e.some(etcdLocks)
	d, err := b.e.daemon("etcd://" + b.srv.Addr + "?ttl=" + sessionShort)
	if err != nil {
		return err
	}
	defer b.e.stop(unitsScene, d)
	return b.with(d, func(c *client.Client) error {
		return b.weigh("a lock, with its watch, in memory", n, b.live, func() error {
			if err := b.weigh("a lock, in the database", n, b.database, func() error {
				err := hold(b.e.Ctx, c, b.keys("", n), unitsLong)
				time.Sleep(ripeAll)
				return err
			}); err != nil {
				return err
			}
			if err := b.flow("a look at a held lock", b.ranges); err != nil {
				return err
			}
			return b.sweep()
		})
	})
}

const sweeps = 20

// sweep measures a daemon's request each minute for the keys of its lease.
func (b *etcdBill) sweep() error {
	all, err := b.cl.Leases(b.e.Ctx)
	if err != nil {
		return err
	}
	for _, l := range all.Leases {
		r, err := b.cl.TimeToLive(b.e.Ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			return err
		}
		if len(r.Keys) < b.e.some(etcdLocks) {
			continue
		}
		cpu, began := b.cpu(), time.Now()
		for range sweeps {
			if _, err := b.cl.TimeToLive(b.e.Ctx, l.ID, clientv3.WithAttachedKeys()); err != nil {
				return err
			}
		}
		b.took("a name in a sweep", float64(sweeps*len(r.Keys)), b.cpu()-cpu, time.Since(began))
		return nil
	}
	return errors.New("no lease has all the locks")
}

// waits measures the polls of a host that waits.
func (b *etcdBill) waits() error {
	return b.waiting(b.hosts, b.keys("", b.e.some(waitingKeys)), func() error {
		time.Sleep(2 * time.Second) // all have queued and are watched
		// a poll reads the host's own key and the one before it
		return b.flow(pollRow, func() (float64, error) {
			n, err := b.ranges()
			return n / 2, err
		})
	})
}
