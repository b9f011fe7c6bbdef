package zookeeper

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// queue reads the holders and waiters of a lock. There are none if it has no node.
func (se *session) queue(ctx context.Context, parent string, watch bool) ([]node, error) {
	names, err := se.children(ctx, parent, watch)
	if err == errNoNode {
		return nil, nil
	}
	return readQueue(names, parseNode), err
}

// permits reads the holders and waiters of a semaphore. There are none if it has no node.
func (se *session) permits(ctx context.Context, parent string) ([]node, error) {
	names, err := se.children(ctx, parent, false)
	if err == errNoNode {
		return nil, nil
	}
	return readQueue(names, parsePermit), err
}

func (se *session) children(ctx context.Context, path string, watch bool) ([]string, error) {
	return call(ctx, se, false, func(c *zk.Conn) (names []string, err error) {
		if watch {
			se.watching.Store(true)
			names, _, _, err = c.ChildrenW(path)
		} else {
			names, _, err = c.Children(path)
		}
		return names, err
	})
}

// content is a node as a server has read it.
type content struct {
	data []byte
	stat *zk.Stat
}

// get reads a node, and watches it if watch is set.
func (se *session) get(ctx context.Context, path string, watch bool) (content, error) {
	return call(ctx, se, false, func(c *zk.Conn) (n content, err error) {
		if watch {
			se.watching.Store(true)
			n.data, n.stat, _, err = c.GetW(path)
		} else {
			n.data, n.stat, err = c.Get(path)
		}
		return n, err
	})
}

// exists returns the state of a node, or nil if there is no such node.
func (se *session) exists(ctx context.Context, path string, watch bool) (*zk.Stat, error) {
	return call(ctx, se, false, func(c *zk.Conn) (stat *zk.Stat, err error) {
		var exists bool
		if watch {
			se.watching.Store(true)
			exists, stat, _, err = c.ExistsW(path)
		} else {
			exists, stat, err = c.Exists(path)
		}
		if !exists {
			stat = nil
		}
		return stat, err
	})
}

// create makes a node. If quorum is set, a success confirms the session.
func (se *session) create(ctx context.Context, path string, data []byte, flags int32,
	quorum bool) error {
	_, err := call(ctx, se, quorum, func(c *zk.Conn) (string, error) {
		return c.Create(path, data, flags, se.store.acl)
	})
	return err
}

// set writes a node of that version, or of any with -1. If quorum is set, a success confirms the
// session.
func (se *session) set(ctx context.Context, path string, data []byte, version int32,
	quorum bool) error {
	_, err := call(ctx, se, quorum, func(c *zk.Conn) (*zk.Stat, error) {
		return c.Set(path, data, version)
	})
	return err
}

// delete deletes a node of that version, or of any with -1. If quorum is set, a success confirms
// the session.
func (se *session) delete(ctx context.Context, path string, version int32, quorum bool) error {
	_, err := call(ctx, se, quorum, func(c *zk.Conn) (any, error) {
		return nil, c.Delete(path, version)
	})
	return err
}

// call makes one call of the client library. The library takes no context and may wait for a
// connection, so the call continues in its goroutine when ctx ends.
func call[T any](ctx context.Context, se *session, quorum bool,
	f func(*zk.Conn) (T, error)) (T, error) {
	var zero T
	w, err := se.enter()
	if err != nil {
		return zero, err
	}
	type reply struct {
		v   T
		err error
	}
	sent := se.store.clock()
	done := make(chan reply, 1)
	var fate atomic.Int32 // 1: abandoned by the caller; 2: ended
	go func() {
		defer se.calls.Done()
		v, err := f(se.conn)
		done <- reply{v, err}
		if quorum && !fate.CompareAndSwap(0, 2) {
			se.abandoned.Add(-1)
		}
	}()
	select {
	case r := <-done:
		if v := outcome(r.err); v == driverkit.Done || v == driverkit.Refused {
			se.answered(w, sent, quorum && v == driverkit.Done)
		} else if errors.Is(r.err, zk.ErrSessionExpired) {
			se.expired()
		}
		return r.v, r.err
	case <-ctx.Done():
		if se.abandoned.Add(1); !quorum || !fate.CompareAndSwap(0, 1) {
			se.abandoned.Add(-1)
		}
		if time.Duration(se.store.clock()-sent) >= se.store.cfg.Timeout/2 {
			se.overdue.Store(true)
			se.wakeUp()
		}
		return zero, ctx.Err()
	}
}

// multi carries out a transaction.
func (se *session) multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error) {
	return call(ctx, se, true, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(ops...)
	})
}

// confirm asks the quorum whether the session exists, by a transaction of one check that always
// succeeds. Once it is answered, all requests on earlier connections have been carried out or
// never will be, and the watches have told every earlier change. The first confirmation of a
// connection also checks that the server has lost no transaction of this session.
func (se *session) confirm(ctx context.Context) error {
	se.mu.Lock()
	w := se.wire
	se.mu.Unlock()
	if w != nil && !w.confirmed.Load() && se.stamped.Load() != nil {
		if _, err := se.stampedMulti(ctx, nil); outcome(err) != driverkit.Refused {
			return err
		} // somebody has deleted the node
	}
	_, err := se.multi(ctx, &zk.CheckVersionRequest{Path: se.store.root(), Version: -1})
	return err
}

// together calls f for 0 to n-1 concurrently and waits. The calls of the library wait for their
// answers, so this is how requests are pipelined.
func together(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// each calls f for all elements concurrently, and returns the results and errors.
func each[T, R any](in []T, f func(T) (R, error)) ([]R, []error) {
	out, errs := make([]R, len(in)), make([]error, len(in))
	together(len(in), func(i int) { out[i], errs[i] = f(in[i]) })
	return out, errs
}
