package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// note returns the path of the note.
func (s *Store) note() string { return s.cfg.Chroot + "/" + internalDir + "/note" }

// Note reads the note once the server has caught up with the leader. The version is the node's
// version plus one.
func (s *Store) Note(ctx context.Context) ([]byte, int64, error) {
	se, err := s.session()
	if err != nil {
		return nil, 0, fmt.Errorf("read the note: %w", err)
	}
	path := s.note()
	_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) { return c.Sync(path) })
	var n content
	if err == nil {
		n, err = se.get(ctx, path, false)
	}
	switch err {
	case nil:
		return n.data, int64(n.stat.Version) + 1, nil
	case errNoNode:
		return nil, 0, nil
	}
	return nil, 0, fmt.Errorf("read the note %s: %w", path, s.cfg.explain(err))
}

// SetNote writes the note if its version is still the given one.
func (s *Store) SetNote(ctx context.Context, text []byte, version int64) (bool, error) {
	se, err := s.session()
	if err != nil {
		return false, fmt.Errorf("write the note: %w", err)
	}
	path := s.note()
	if version == 0 {
		err = se.create(ctx, path, text, zk.FlagPersistent, false)
	} else {
		err = se.set(ctx, path, text, int32(version-1), false)
	}
	switch err {
	case nil:
		return true, nil
	case zk.ErrNodeExists, zk.ErrBadVersion, errNoNode:
		return false, nil
	}
	return false, fmt.Errorf("write the note %s: %w", path, s.cfg.explain(err))
}
