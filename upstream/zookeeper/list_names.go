package zookeeper

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// Limits of a listing. ZooKeeper has no pages: one answer has the names of all children.
const (
	// directChildren is the largest number of children that is read on the connection of the locks.
	directChildren = 2000
	// maxChildren is the largest number of children that is read, because a server builds the answer
	// in its memory.
	maxChildren = 250_000
	// maxListBytes limits the size of an answer.
	maxListBytes = 32 << 20
	// listCacheTTL is how long a long list of names is kept for its next page.
	listCacheTTL = 10 * time.Second
)

// listCache keeps the last long list of names, so that its further pages do not read it again.
type listCache struct {
	mu    sync.Mutex
	path  string   // guarded by mu, as is all below
	names []string // sorted
	end   *time.Timer
}

func (l *listCache) keep(path string, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end == nil {
		l.end = time.AfterFunc(listCacheTTL, l.drop)
	} else {
		l.end.Reset(listCacheTTL)
	}
	l.path, l.names = path, names
}

func (l *listCache) get(path string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != path || l.names == nil {
		return nil
	}
	l.end.Reset(listCacheTTL)
	return slices.Clone(l.names)
}

func (l *listCache) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = nil
	if l.end != nil {
		l.end.Stop()
	}
}

// names returns the sorted names of all children of path, or none if there is no such node. If
// further is true (a page after the first), the names may be a few seconds old.
func (se *session) names(ctx context.Context, path string, further bool) ([]string, error) {
	s := se.store
	if further {
		if names := s.listed.get(path); names != nil {
			return names, nil
		}
	}
	stat, err := se.exists(ctx, path, false)
	if err != nil || stat == nil {
		return nil, s.cfg.explain(err)
	}
	n := stat.NumChildren
	if n > maxChildren {
		return nil, fmt.Errorf("%w: %s has %d children; at most %d can be listed",
			ErrRefused, path, n, maxChildren)
	}
	read := func() ([]string, error) { return se.children(ctx, path, false) }
	if n > directChildren {
		read = func() ([]string, error) { return s.readSeparately(ctx, se.conn.Server(), path) }
	}
	names, err := read()
	switch {
	case err != nil && n > directChildren && outcome(err) == driverkit.Unknown:
		// The connection of the locks has not failed, so this is not ErrDown.
		return nil, fmt.Errorf("%w: read the names of %d children of %s: %w "+
			"(an answer may have %d bytes)", ErrNoAnswer, n, path, err, maxListBytes)
	case err != nil && err != errNoNode:
		return nil, s.cfg.explain(err)
	}
	slices.Sort(names)
	if n > directChildren {
		s.listed.keep(path, slices.Clone(names))
	}
	return names, nil
}

// readSeparately reads the children of path on a separate connection with its own session. On the
// connection of the locks, a long answer would delay all others, and a too long one would end the
// connection.
func (s *Store) readSeparately(ctx context.Context, addr, path string) ([]string, error) {
	login, err := s.cfg.login()
	if err != nil {
		return nil, s.noSession(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	once := singleDialer{store: s, ctx: ctx}
	hosts := newServers([]string{addr}, func() {})
	c, events, err := zk.Connect([]string{addr}, s.cfg.Session, zk.WithDialer(once.dial),
		zk.WithHostProvider(hosts), zk.WithLogger(libraryLog{s.log}), zk.WithLogInfo(false),
		zk.WithMaxBufferSize(maxListBytes))
	if err != nil {
		return nil, err
	}
	// When ctx ends, the connection is cut, so that Children returns before the library is closed.
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

// singleDialer makes one connection. A second one would be a new session.
type singleDialer struct {
	store *Store
	ctx   context.Context
	mu    sync.Mutex
	conn  net.Conn // guarded by mu
	made  bool     // guarded by mu
}

func (d *singleDialer) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made {
		return nil, errRetired
	}
	d.made = true
	ctx, cancel := context.WithTimeout(d.ctx, d.store.cfg.Timeout)
	defer cancel()
	c, err := d.store.cfg.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	d.conn = c
	d.store.open.Add(1)
	return c, nil
}

// cut closes the connection and stops counting it as open.
func (d *singleDialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
		d.store.open.Add(-1)
	}
}
