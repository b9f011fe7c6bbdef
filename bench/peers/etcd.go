package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/bench/load"
)

// etcdMutex is etcd's own recipe, with one session for all callers.
type etcdMutex struct {
	c *clientv3.Client
	s *concurrency.Session
}

func openEtcdMutex(a *load.PairsArgs) (load.Locker, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{a.Addr}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(a.TTL/time.Second)))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &etcdMutex{c, s}, nil
}

func (e *etcdMutex) Lock(ctx context.Context, _ int, key string) (func(context.Context) error, error) {
	m := concurrency.NewMutex(e.s, "mutex/"+key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return m.Unlock, nil
}

func (e *etcdMutex) Close() error { return errors.Join(e.s.Close(), e.c.Close()) }
