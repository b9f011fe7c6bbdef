package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/postgres"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// drivers complete a plan from its URL. They connect to nothing.
var drivers = map[config.Kind]func(*plan, *config.Config) error{
	config.KindRedis:     planRedis,
	config.KindRedlock:   planRedlock,
	config.KindZooKeeper: planZooKeeper,
	config.KindMySQL:     planMySQL,
	config.KindPostgres:  planPostgres,
}

// reserved is the prefix of the Redis stores' own keys.
const reserved = "locksidecar:"

func checkReserved(prefix string) func(key string) error {
	return func(key string) error {
		if name := prefix + key; strings.HasPrefix(name, reserved) {
			return fmt.Errorf("it would be %q in Redis, and names there that begin with %q are "+
				"reserved",
				name, reserved)
		}
		return nil
	}
}

const plainLockers = "a plain SET … NX PX on it and this lock exclude each other"

// open opens a store with the functions of its driver.
func open[C any, S upstream.Store](ctx context.Context, o opening, cfg C,
	open func(context.Context, C) (S, error), openLazy func(C) (S, error),
) (upstream.Store, error) {
	if o.lazy {
		return openLazy(cfg)
	}
	return open(ctx, cfg)
}

func planRedis(p *plan, _ *config.Config) error {
	cfg, err := redis.Parse(p.url)
	if err != nil {
		return err
	}
	servers := cfg.Hosts
	if cfg.Network == "unix" {
		servers = []string{cfg.Addr}
	}
	p.place = place(p.kind, servers, cfg.Kind, cfg.Master, cfg.DB, cfg.Prefix)
	p.can = abilities{100 * time.Millisecond, true, true}
	p.where, p.safety, p.scope = cfg.String(), "best-effort",
		"all hosts that use this Redis and prefix"
	p.check = checkReserved(cfg.Prefix)
	p.there = func(key string) string { return cfg.Prefix + key + " (" + plainLockers + ")" }
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		cfg.Options = o.options(p.place)
		return open(ctx, o, cfg, redis.Open, redis.OpenLazy)
	}
	return nil
}

// planRedlock makes a node that restarts wait for the longest TTL that any lock can have. So this
// TTL is limited to twice the longest one in the configuration.
func planRedlock(p *plan, c *config.Config) error {
	cfg, err := redlock.Parse(p.url)
	if err != nil {
		return err
	}
	longest := time.Duration(0)
	for _, n := range c.AllNamespaces() {
		longest = max(longest, n.TTL)
	}
	cfg.SetMaxTTL(2 * longest)
	p.place = place(p.kind, cfg.URL.Hosts, cfg.DB, cfg.Prefix)
	p.maxTTL = cfg.MaxTTL
	p.can = abilities{minTTL: max(time.Second, 2*cfg.Timeout), rebase: true}
	p.where, p.safety, p.scope = cfg.String(), "best-effort",
		"all hosts that use these servers and prefix"
	p.check = checkReserved(cfg.Prefix)
	p.there = func(key string) string {
		return cfg.Prefix + key + " on most of the servers (" + plainLockers + ")"
	}
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		member := func(m redlock.Member) (upstream.Store, error) {
			rc, err := redis.Parse(m.URL)
			if err != nil {
				return nil, err
			}
			rc.Options = o.options(p.place + " " + rc.String())
			rc.Instance, rc.MinUptime = m.Instance, m.MinUptime
			return redis.OpenLazy(rc)
		}
		cfg.Options = o.options(p.place)
		if o.lazy {
			return redlock.OpenLazy(cfg, member)
		}
		s, err := redlock.Open(ctx, cfg, member)
		if errors.Is(err, redlock.ErrNoQuorum) {
			return nil, fmt.Errorf("%w: %w", upstream.ErrDown, err)
		}
		return s, err
	}
	return nil
}

func planZooKeeper(p *plan, _ *config.Config) error {
	cfg, err := zookeeper.Parse(p.url)
	if err != nil {
		return err
	}
	p.place = place(p.kind, cfg.Servers, cfg.Chroot)
	p.can = abilities{minTTL: 100 * time.Millisecond, queue: true}
	p.session = cfg.Session
	p.where, p.safety, p.scope = cfg.String(), "linearizable",
		"all hosts that use this ZooKeeper and path"
	p.there = func(key string) string {
		return cfg.Name(key) + " (Curator's InterProcessMutex on it and this lock exclude each other)"
	}
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		cfg.Options = o.options(p.place)
		return open(ctx, o, cfg, zookeeper.Open, zookeeper.OpenLazy)
	}
	return nil
}

func planMySQL(p *plan, _ *config.Config) error {
	cfg, err := mysql.Parse(p.url)
	if err != nil {
		return err
	}
	p.place = place(p.kind, cfg.URL.Hosts, cfg.Database, cfg.Table, cfg.Prefix)
	p.can = abilities{500 * time.Millisecond, true, true}
	p.where, p.safety, p.scope = cfg.String(), "linearizable while the primary lasts",
		"all hosts that use this table and prefix"
	p.there = func(key string) string { return "the row " + cfg.Prefix + key + " of " + cfg.Table }
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		cfg.Options = o.options(p.place)
		return open(ctx, o, cfg, mysql.Open, mysql.OpenLazy)
	}
	return nil
}

func planPostgres(p *plan, _ *config.Config) error {
	cfg, err := postgres.Parse(p.url)
	if err != nil {
		return err
	}
	p.place = place(p.kind, cfg.URL.Hosts, cfg.Database, cfg.Schema, cfg.Table, cfg.Prefix)
	p.can = abilities{500 * time.Millisecond, true, true}
	p.where, p.safety, p.scope = cfg.String(), "linearizable while the primary lasts",
		"all hosts that use this table and prefix"
	p.there = func(key string) string {
		return "the row " + cfg.Prefix + key + " of " + cfg.Schema + "." + cfg.Table
	}
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		cfg.Options = o.options(p.place)
		return open(ctx, o, cfg, postgres.Open, postgres.OpenLazy)
	}
	return nil
}
