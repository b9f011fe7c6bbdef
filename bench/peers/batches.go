package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/bench/load"
)

// This file has the least work in batches for each store: to create keys that must not exist, and
// to remove them. Nothing looks at a queue, and only Redis gives a fence.

type etcdBatches struct {
	c     *clientv3.Client
	lease clientv3.LeaseID
}

func openEtcdBatches(a *load.BatchesArgs) (load.Batcher, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{a.Addr}, DialTimeout: 10 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	l, err := c.Grant(context.Background(), int64(a.TTL/time.Second))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &etcdBatches{c, l.ID}, nil
}

func (e *etcdBatches) LockAll(ctx context.Context,
	keys []string) (func(context.Context) error, error) {
	takes, drops := make([]clientv3.Op, len(keys)), make([]clientv3.Op, len(keys))
	for i, k := range keys {
		takes[i] = clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(k), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(k, "", clientv3.WithLease(e.lease))},
			[]clientv3.Op{clientv3.OpGet(k)})
		drops[i] = clientv3.OpDelete(k)
	}
	r, err := e.c.Txn(ctx).Then(takes...).Commit()
	if err != nil {
		return nil, err
	}
	for _, one := range r.Responses {
		if !one.GetResponseTxn().Succeeded {
			return nil, errNotHeld
		}
	}
	return func(ctx context.Context) error {
		_, err := e.c.Txn(ctx).Then(drops...).Commit()
		return err
	}, nil
}

func (e *etcdBatches) Close() error { return e.c.Close() }

type sqlBatches struct{ *sqlPool }

func openSQLBatches(a *load.BatchesArgs) (load.Batcher, error) {
	// Otherwise two batches wait for the gaps between each other's rows.
	p, err := newSQLPool(&a.PairsArgs, "&tx_isolation=%27READ-COMMITTED%27")
	if err != nil {
		return nil, err
	}
	return sqlBatches{p}, nil
}

func (s sqlBatches) LockAll(ctx context.Context,
	keys []string) (func(context.Context) error, error) {
	owner := rand.Text()
	slices.Sort(keys) // two batches that lock rows in different orders would deadlock
	rows, names := make([]any, 0, 3*len(keys)), make([]any, 0, len(keys)+1)
	for _, k := range keys {
		rows, names = append(rows, k, owner, s.ttl.Seconds()), append(names, k)
	}
	one := strings.TrimPrefix(rowInsert, "INSERT INTO pool VALUES ")
	insert := rowInsert + strings.Repeat(", "+one, len(keys)-1)
	if _, err := s.db.ExecContext(ctx, insert, rows...); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		drop := "DELETE FROM pool WHERE name IN (?" + strings.Repeat(",?",
			len(keys)-1) + ") AND owner = ?"
		return changed(s.db.ExecContext(ctx, drop, append(names, owner)...))(int64(len(keys)))
	}, nil
}

// changed returns a function that checks how many rows were changed.
func changed(r sql.Result, err error) func(want int64) error {
	return func(want int64) error {
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != want {
			return errors.Join(err, errNotHeld)
		}
		return nil
	}
}

// redisBatches pipelines one script call per lock, which keys that are scattered over a cluster's
// slots need. The keys have many hash tags, each with its fence counter.
type redisBatches struct {
	c   redis.UniversalClient
	ttl time.Duration
}

var (
	fencedTake = redis.NewScript(`
if not redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then return 0 end
return redis.call("INCR", KEYS[2])`)
	batchScripts = []*redis.Script{fencedTake, compareAndDelete}
)

func openRedisBatches(a *load.BatchesArgs) (load.Batcher, error) {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{a.Addr},
		PoolTimeout: 30 * time.Second})
	err := c.ForEachMaster(context.Background(), func(ctx context.Context, n *redis.Client) error {
		for _, s := range batchScripts {
			if err := s.Load(ctx, n).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &redisBatches{c, a.TTL}, nil
}

func (r *redisBatches) LockAll(ctx context.Context,
	keys []string) (func(context.Context) error, error) {
	token := rand.Text()
	p := r.c.Pipeline()
	for _, k := range keys {
		tag, _, _ := strings.Cut(k, "}")
		fencedTake.EvalSha(ctx, p, []string{k, tag + "}:fence"}, token, r.ttl.Milliseconds())
	}
	if err := all(p.Exec(ctx)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		p := r.c.Pipeline()
		for _, k := range keys {
			compareAndDelete.EvalSha(ctx, p, []string{k}, token)
		}
		return all(p.Exec(ctx))
	}, nil
}

// all reports whether every call has answered something.
func all(cmds []redis.Cmder, err error) error {
	for _, c := range cmds {
		if n, _ := c.(*redis.Cmd).Int64(); n == 0 && err == nil {
			err = errNotHeld
		}
	}
	return err
}

func (r *redisBatches) Close() error { return r.c.Close() }
