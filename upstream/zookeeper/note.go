package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Noter = (*Store)(nil)

// note is the path of the note: a node beside those of the sessions.
func (s *Store) note() string { return s.cfg.Chroot + "/" + own + "/note" }

// Note reads the note once the server has caught up with the leader. The version is one more than that of
// the node.
func (s *Store) Note(ctx context.Context) ([]byte, int64, error) {
	se, err := s.session()
	if err != nil {
		return nil, 0, fmt.Errorf("read the note: %w", err)
	}
	path := s.note()
	type node struct {
		text    []byte
		version int64
	}
	_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) { return c.Sync(path) })
	var n node
	if err == nil {
		n, err = call(ctx, se, false, func(c *zk.Conn) (node, error) {
			text, stat, err := c.Get(path)
			if err != nil {
				return node{}, err
			}
			return node{text, int64(stat.Version) + 1}, nil
		})
	}
	if err != nil && err != errGone {
		return nil, 0, fmt.Errorf("read the note %s: %w", path, s.cfg.explain(err))
	}
	return n.text, n.version, nil
}

// SetNote writes the note if its version is still the given one.
func (s *Store) SetNote(ctx context.Context, text []byte, version int64) (bool, error) {
	se, err := s.session()
	if err != nil {
		return false, fmt.Errorf("write the note: %w", err)
	}
	path := s.note()
	_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) {
		if version == 0 {
			return c.Create(path, text, zk.FlagPersistent, s.acl)
		}
		return c.Set(path, text, int32(version-1))
	})
	switch err {
	case nil:
		return true, nil
	case zk.ErrNodeExists, zk.ErrBadVersion, errGone:
		return false, nil
	}
	return false, fmt.Errorf("write the note %s: %w", path, s.cfg.explain(err))
}
