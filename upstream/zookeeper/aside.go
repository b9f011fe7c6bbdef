package zookeeper

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// ZooKeeper has no pages: an answer has the names of all children.
const (
	// listDirect is how many children are read on the connection that the locks have.
	listDirect = 2000
	// listMost is how many are read at all: a server makes each answer in its memory.
	listMost = 250_000
	// listBytes bounds an answer.
	listBytes = 32 << 20
	// listedFor is how long a long list of names is kept for its next page.
	listedFor = 10 * time.Second
)

// listed keeps the last long list of names, so that its pages do not all read it anew.
type listed struct {
	mu    sync.Mutex
	path  string   // guarded by mu, as is all below
	names []string // sorted
	end   *time.Timer
}

func (l *listed) keep(path string, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end == nil {
		l.end = time.AfterFunc(listedFor, l.drop)
	} else {
		l.end.Reset(listedFor)
	}
	l.path, l.names = path, names
}

func (l *listed) get(path string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != path || l.names == nil {
		return nil
	}
	l.end.Reset(listedFor)
	return slices.Clone(l.names)
}

func (l *listed) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = nil
	if l.end != nil {
		l.end.Stop()
	}
}

// names is the sorted names of all children of path; none if there is no such node. Those of a
// further page may be a few seconds old.
func (se *session) names(ctx context.Context, path string, further bool) ([]string, error) {
	s := se.store
	if further {
		if names := s.listed.get(path); names != nil {
			return names, nil
		}
	}
	n, err := call(ctx, se, false, func(c *zk.Conn) (int32, error) {
		there, stat, err := c.Exists(path)
		if err != nil || !there {
			return 0, err
		}
		return stat.NumChildren, nil
	})
	if err != nil {
		return nil, s.cfg.explain(err)
	}
	if n > listMost {
		return nil, fmt.Errorf("%w: %s has %d children, and at most %d can be listed", ErrRefused, path, n, listMost)
	}
	read := func() ([]string, error) { return se.children(ctx, path, false) }
	if n > listDirect {
		read = func() ([]string, error) { return s.readAside(ctx, se.conn.Server(), path) }
	}
	names, err := read()
	switch {
	case err != nil && n > listDirect && judge(err) == unknown: // it is not the locks' connection that failed
		return nil, fmt.Errorf("%w: the names of %d children of %s: %w (an answer has at most %d bytes)", ErrNoAnswer, n, path, err, listBytes)
	case err != nil && err != errGone:
		return nil, s.cfg.explain(err)
	}
	slices.Sort(names)
	if n > listDirect {
		s.listed.keep(path, slices.Clone(names))
	}
	return names, nil
}

// readAside reads the children of path on a connection of its own, with a session of its own. A
// long answer would hold up all others on the connection that the locks have, and one that is too
// long would end it.
func (s *Store) readAside(ctx context.Context, addr, path string) ([]string, error) {
	login, err := s.cfg.login()
	if err != nil {
		return nil, s.noSession(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	once := asideDialer{store: s, ctx: ctx}
	c, events, err := zk.Connect([]string{addr}, s.cfg.Session, zk.WithDialer(once.dial), zk.WithHostProvider(newServers([]string{addr}, func() {})),
		zk.WithLogger(libraryLog{s.log}), zk.WithLogInfo(false), zk.WithMaxBufferSize(listBytes))
	if err != nil {
		return nil, err
	}
	// An answer that is under way ends with its connection, before the library is closed.
	stop := context.AfterFunc(ctx, once.cut)
	if login != nil {
		err = c.AddAuth("digest", login)
	}
	var names []string
	if err == nil {
		names, _, err = c.Children(path)
	}
	stop()
	c.Close()
	for range events {
	}
	once.cut()
	return names, err
}

// asideDialer makes one connection and no other.
type asideDialer struct {
	store *Store
	ctx   context.Context
	mu    sync.Mutex
	conn  net.Conn // guarded by mu
	made  bool     // guarded by mu
}

func (d *asideDialer) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made {
		return nil, errRetired
	}
	d.made = true
	ctx, cancel := context.WithTimeout(d.ctx, d.store.cfg.Timeout)
	defer cancel()
	conf, err := d.store.cfg.url.TLS.Config(addr)
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, addr, conf)
	if err != nil {
		return nil, err
	}
	d.conn = c
	d.store.open.Add(1)
	return c, nil
}

// cut closes the connection, and counts it no more.
func (d *asideDialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
		d.store.open.Add(-1)
	}
}
