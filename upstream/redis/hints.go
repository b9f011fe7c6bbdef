package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	// quiet is how long the subscription may say nothing before it is asked
	// whether it still stands; as long again without an answer, and it is made
	// anew.
	quiet    = 10 * time.Second
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

// listen receives hints until ctx ends. What is said while there is no
// connection is lost: nothing depends on it.
func (s *Store) listen(ctx context.Context) {
	defer close(s.ended)
	pause, down := retryMin, false
	for ctx.Err() == nil {
		err := s.subscribed(ctx, func() {
			if down {
				s.log.Info("hints between hosts work again")
			}
			pause, down = retryMin, false
		})
		if ctx.Err() != nil {
			return
		}
		if !down {
			s.log.Warn("no hints between hosts: polling alone", zap.Error(err))
			down = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, retryMax)
	}
}

// subscribed receives hints on one connection until it fails or ctx ends.
func (s *Store) subscribed(ctx context.Context, up func()) error {
	ps := s.client.Subscribe(ctx, hintChannel+s.instance)
	defer ps.Close()
	// A read does not end with its context, but with its connection.
	stop := context.AfterFunc(ctx, func() { _ = ps.Close() })
	defer stop()
	asked := false
	for {
		m, err := ps.ReceiveTimeout(ctx, quiet)
		switch {
		case err == nil:
			asked = false
		case isTimeout(err) && !asked:
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		default:
			return err
		}
		switch m := m.(type) {
		case *goredis.Subscription:
			up()
		case *goredis.Message:
			s.heard(m.Payload)
		}
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// heard passes a hint on, unless nobody keeps up with them.
func (s *Store) heard(payload string) {
	if payload == "" {
		return
	}
	h := upstream.Hint{}
	switch payload[0] {
	case 'f':
		h.Kind = cache.HintFree
	case 'w':
		h.Kind = cache.HintWanted
	default:
		return
	}
	key, ok := strings.CutPrefix(payload[1:], s.cfg.Prefix)
	if !ok {
		return
	}
	h.Key = key
	select {
	case s.hints <- h:
	default:
	}
}
