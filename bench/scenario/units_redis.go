package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// The sizes of what is measured on Redis.
const (
	heavyLocks  = 30_000
	burstLocks  = 10_000
	fleetHosts  = 16
	fleetLocks  = 500 // per host
	waitingKeys = 1000
	bareConns   = 1000
	rarely      = 20 * time.Millisecond
	silent      = 4 * time.Second // after that time a connection has released its buffers
)

// redisBill is a Redis, or the nodes of a cluster, with what they can be asked for.
type redisBill struct {
	*bill
	nodes []*harness.Redis
	url   string
	hosts twins
}

// redisBill starts two daemons on the nodes.
func (e *Env) redisBill(store, url string, nodes []*harness.Redis) (*redisBill, error) {
	b := &redisBill{nodes: nodes, url: url}
	var err error
	if b.hosts, err = e.twins(url); err != nil {
		return nil, err
	}
	var pids []int
	for _, r := range nodes {
		pids = append(pids, r.PID())
	}
	b.bill = e.newBill(store, pids...)
	return b, nil
}

func (b *redisBill) end() {
	b.hosts.stop(b.e, unitsScene)
	b.bill.end()
}

// renewals returns the number of renewals so far.
func (b *redisBill) renewals() (float64, error) {
	return b.said("commandstats", "cmdstat_pexpire:calls=", ",")
}

// memory returns the memory that the nodes have allocated.
func (b *redisBill) memory() (float64, error) { return b.said("memory", "used_memory:", "\r\n") }

// said adds up a number that the nodes report in a section of INFO; 0 if it is missing.
func (b *redisBill) said(section, before, behind string) (sum float64, err error) {
	for _, r := range b.nodes {
		n, e := asked(r.Addr, func(ctx context.Context, c *redis.Client) (float64, error) {
			s, err := c.Info(ctx, section).Result()
			_, rest, found := strings.Cut(s, before)
			if !found {
				return 0, err
			}
			n, _, _ := strings.Cut(rest, behind)
			return strconv.ParseFloat(n, 64)
		})
		sum, err = sum+n, errors.Join(err, e)
	}
	return sum, err
}

// asked queries a server on a connection that is closed afterwards.
func asked[T any](addr string, ask func(context.Context, *redis.Client) (T, error)) (T, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1})
	defer c.Close()
	return ask(context.Background(), c)
}

func redisUnits(e *Env) error {
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	b, err := e.redisBill("Redis", "redis://"+r.Addr, []*harness.Redis{r})
	if err != nil {
		return err
	}
	defer b.end()
	return inTurn(
		b.connections,
		func() error { return b.locks("", "") },
		b.fleet,
		func() error { return b.work(b.hosts) },
		b.waits,
	)
}

// waits measures keys that the other host waits for.
func (b *redisBill) waits() error {
	n := b.e.some(waitingKeys)
	before, err := b.memory()
	if err != nil {
		return err
	}
	return b.waiting(b.hosts, b.keys("", n), func() error {
		time.Sleep(time.Second) // all have queued
		after, err := b.memory()
		if err != nil {
			return err
		}
		b.add("a held lock that another host waits for",
			harness.Metrics{"bytes": (after - before) / float64(n)})
		return b.flow(pollRow, b.polls)
	})
}

// polls returns how often a waiting host has renewed its place in the queue. Each poll is one ZADD.
func (b *redisBill) polls() (float64, error) {
	return b.said("commandstats", "cmdstat_zadd:calls=", ",")
}

// locks measures held locks, with a hash tag or without one, and their renewals all at once.
func (b *redisBill) locks(what, tag string) error {
	n := b.e.some(heavyLocks)
	if err := b.with(b.hosts[0], func(c *client.Client) error {
		return b.weigh("a lock"+what, n, b.memory, func() error {
			return hold(b.e.Ctx, c, b.keys(tag, n), unitsLong)
		})
	}); err != nil {
		return err
	}
	return b.with(b.hosts[0], func(c *client.Client) error {
		n := b.e.some(burstLocks)
		if err := hold(b.e.Ctx, c, b.keys(tag, n), burstTTL); err != nil {
			return err
		}
		for range b.rounds {
			if err := b.burst("a renewal"+what+", all due at once", b.hosts[0], float64(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// burst stops a daemon until all its n locks are due, and measures their renewals.
func (b *redisBill) burst(row string, d *Daemon, n float64) error {
	if err := d.Pause(); err != nil {
		return err
	}
	time.Sleep(burstTTL / 3)
	before, err := b.renewals()
	cpu, began := b.cpu(), time.Now()
	if err := errors.Join(err, d.Resume()); err != nil {
		return err
	}
	for {
		time.Sleep(rarely) // the query costs the server something, too
		used, took := b.cpu()-cpu, time.Since(began)
		after, err := b.renewals()
		switch {
		case err != nil:
			return err
		case after >= before+n:
			b.took(row, after-before, used, took)
			return nil
		case took > burstTTL:
			return fmt.Errorf("%s, %s: %.0f of %.0f have been renewed", b.store, row, after-before, n)
		}
	}
}

// clients returns the number of connections.
func (b *redisBill) clients() (n int) {
	for _, r := range b.nodes {
		n += r.Clients()
	}
	return n
}

// fleet measures several daemons while they connect, and while they renew locks that were acquired
// at different times.
func (b *redisBill) fleet() (err error) {
	hosts := b.e.some(fleetHosts)
	var daemons []*Daemon
	var clients []*client.Client
	defer func() {
		for _, c := range clients {
			err = errors.Join(err, c.Close())
		}
		for _, d := range daemons {
			b.e.stop(unitsScene, d)
		}
	}()
	had, cpu, began := b.clients(), b.cpu(), time.Now()
	for range hosts {
		d, err := b.e.daemon(b.url)
		if err != nil {
			return err
		}
		daemons = append(daemons, d)
	}
	time.Sleep(unitsPause) // they have connected
	used, took := b.cpu()-cpu, time.Since(began)
	b.took("a connection made and checked", float64(b.clients()-had), used, took)
	for _, d := range daemons {
		c, err := b.client(d)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	keys := b.keys("", hosts*fleetLocks)
	failed := make([]error, hosts)
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			failed[i] = holdEvenly(b.e.Ctx, c, keys[i*fleetLocks:(i+1)*fleetLocks], driftTTL, driftTTL/3)
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	time.Sleep(driftTTL / 10) // the first lock is due
	return b.flow("a renewal, each when it is due", b.renewals)
}

// clusterUnits measures what is different in a cluster. Keys that are scattered over the slots have
// a script call each; the others share a hash tag.
func clusterUnits(e *Env) error {
	nodes, err := harness.StartRedisCluster(e.Dir, clusterNodes)
	if err != nil {
		return err
	}
	defer nodes.Stop()
	b, err := e.redisBill("Cluster", nodes.URL(), nodes)
	if err != nil {
		return err
	}
	defer b.end()
	return inTurn(
		func() error { return b.locks("", "") },
		func() error { return b.locks(" of one hash tag", "{fleet}") },
		b.fleet,
		func() error { return b.work(b.hosts) },
		b.waits,
		b.look,
	)
}
