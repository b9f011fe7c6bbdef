//go:build !noetcd

package main

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
)

func init() { drivers[config.KindEtcd] = planEtcd }

func planEtcd(p *plan, _ *config.Config) error {
	cfg, err := etcd.Parse(p.url)
	if err != nil {
		return err
	}
	p.place = place(p.kind, cfg.Endpoints, cfg.Prefix)
	p.can = abilities{minTTL: 100 * time.Millisecond, queue: true}
	p.session = cfg.TTL
	p.where, p.safety, p.scope = cfg.String(), "linearizable",
		"all hosts that use this etcd and prefix"
	p.there = func(key string) string {
		return cfg.Name(key) + " (etcdctl lock or concurrency.Mutex on it and this lock exclude each other)"
	}
	p.open = func(ctx context.Context, o opening) (upstream.Store, error) {
		cfg.Options = o.options(p.place)
		if o.successor != nil {
			return etcd.OpenSuccessor(ctx, cfg)
		}
		return open(ctx, o, cfg, etcd.Open, etcd.OpenLazy)
	}
	return nil
}
