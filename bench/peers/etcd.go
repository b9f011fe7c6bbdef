package main

import (
	"context"
	"errors"
	gosync "sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/bench/load"
)

// etcdMutex is etcd's own recipe. Its sessions are the owners: callers that share a session do not
// exclude each other from the same key.
type etcdMutex struct {
	c        *clientv3.Client
	sessions []*concurrency.Session
	// by key: a channel with room for the one caller that may proceed; nil if not used
	doors *gosync.Map
}

// openEtcdMutex has one session for all callers, which use different keys.
func openEtcdMutex(a *load.PairsArgs) (load.Locker, error) { return newEtcdMutex(a, 1) }

// openEtcdMutexEach has a session for each caller.
func openEtcdMutexEach(a *load.PairsArgs) (load.Locker, error) { return newEtcdMutex(a, a.Callers) }

// openEtcdMutexDoor has one session. It admits one caller at a time to each key, in their order. A
// program can do that by itself for keys that only this program uses.
func openEtcdMutexDoor(a *load.PairsArgs) (load.Locker, error) {
	e, err := newEtcdMutex(a, 1)
	if err == nil {
		e.doors = new(gosync.Map)
	}
	return e, err
}

func newEtcdMutex(a *load.PairsArgs, sessions int) (*etcdMutex, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{a.Addr}, DialTimeout: 10 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	e := &etcdMutex{c: c}
	for range sessions {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(a.TTL/time.Second)))
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.sessions = append(e.sessions, s)
	}
	return e, nil
}

func (e *etcdMutex) Lock(ctx context.Context, caller int,
	key string) (func(context.Context) error, error) {
	leave, err := e.door(ctx, key)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(e.sessions[caller%len(e.sessions)], "mutex/"+key)
	if err := m.Lock(ctx); err != nil {
		leave()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer leave()
		return m.Unlock(ctx)
	}, nil
}

// door blocks until no other caller of this process uses the key.
func (e *etcdMutex) door(ctx context.Context, key string) (leave func(), err error) {
	if e.doors == nil {
		return func() {}, nil
	}
	d, _ := e.doors.LoadOrStore(key, make(chan struct{}, 1))
	door := d.(chan struct{})
	select {
	case door <- struct{}{}:
		return func() { <-door }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *etcdMutex) Close() (err error) {
	for _, s := range e.sessions {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, e.c.Close())
}
