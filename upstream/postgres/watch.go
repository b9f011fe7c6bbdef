package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	hintBuffer = 1024
	// listenPause is the approximate pause before the listener connects again.
	listenPause = time.Second
	// quietTime is the silence after which the listener checks whether its connection still works.
	quietTime = 15 * time.Second
)

// listenAll keeps a connection that receives our notifications until ctx ends.
func (s *Store) listenAll(ctx context.Context) {
	for {
		if err := s.listen(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("cannot listen for notifications", zap.Error(s.advice(err)))
		}
		if !driverkit.Sleep(ctx, driverkit.Jitter(listenPause)) {
			return
		}
	}
}

// listen receives notifications on one connection until it fails.
func (s *Store) listen(ctx context.Context) error {
	c, err := s.connect(ctx, s.notified)
	if err != nil {
		return err
	}
	defer c.close()
	ask := func(sql string) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		_, err := c.query(ctx, sql)
		return err
	}
	if err := ask(`LISTEN "` + channel + s.instance + `"`); err != nil {
		return err
	}
	for {
		quiet, cancel := context.WithTimeout(ctx, quietTime)
		err := c.pg.WaitForNotification(quiet)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil || !pgconn.Timeout(err) || c.pg.IsClosed():
			return err
		default:
			if err := ask("SELECT 1"); err != nil {
				return err
			}
		}
	}
}

var hintKinds = map[byte]cache.HintKind{
	'a': cache.HintAvailable, 'c': cache.HintContended, 't': cache.HintTried}

// notified passes on the hint of one notification: its kind and the name of the lock. Stores with
// other prefixes have other instances, but any client may send anything to our channel.
func (s *Store) notified(payload string) {
	if payload == "" {
		return
	}
	kind := hintKinds[payload[0]]
	key, ours := strings.CutPrefix(payload[1:], s.cfg.Prefix)
	if kind == 0 || !ours || key == "" {
		return
	}
	s.hints.Send(upstream.Hint{Kind: kind, Key: key})
}
