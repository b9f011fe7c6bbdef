package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	// quiet is how long a subscription may say nothing before it is asked
	// whether it still stands; as long again without an answer, and it is made
	// anew.
	quiet    = 10 * time.Second
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

// keep calls try until ctx ends, with pauses that grow until it calls up. failed
// gets the first error after an up.
func keep(ctx context.Context, try func(up func()) error, failed func(error)) {
	pause, down := retryMin, false
	for ctx.Err() == nil {
		err := try(func() { pause, down = retryMin, false })
		if ctx.Err() != nil {
			return
		}
		if !down {
			failed(err)
			down = true
		}
		sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, retryMax)
	}
}

// receive passes on what a subscription says until it fails, on says so, or ctx
// ends.
func receive(ctx context.Context, ps *goredis.PubSub, on func(any) error) error {
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
		if err := on(m); err != nil {
			return err
		}
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// listen receives hints until ctx ends. What is said while there is no
// connection is lost: nothing depends on it.
func (s *Store) listen(ctx context.Context) {
	down := false
	keep(ctx, func(up func()) error {
		return s.subscribed(ctx, func() {
			if down {
				s.log.Info("hints between hosts work again")
			}
			down = false
			s.hearing.Store(true)
			up()
		})
	}, func(err error) {
		s.log.Warn("no hints between hosts: polling alone", zap.Error(err))
		down = true
	})
}

var (
	errElsewhere = errors.New("hints come on another node now")
	errNobody    = errors.New("nobody serves the slot of the channel for hints")
)

// subscribed receives hints on one connection until it fails or is not the right
// one any more, or ctx ends.
func (s *Store) subscribed(ctx context.Context, up func()) error {
	channel := hintChannel + s.instance
	slot := slotOf("", channel)
	n := s.serves(slot)
	if n == nil {
		s.cluster.look()
		return errNobody
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer endWith(n.dialer.now.Load().over, cancel)()
	subscribe := n.client.Subscribe
	if s.cluster != nil {
		subscribe = n.client.SSubscribe
	}
	ps := subscribe(ctx, channel)
	defer ps.Close()
	err := receive(ctx, ps, func(m any) error {
		switch m := m.(type) {
		case *goredis.Subscription:
			if strings.HasSuffix(m.Kind, "unsubscribe") { // the slot has moved
				return errElsewhere
			}
			up()
		case *goredis.Message:
			s.heard(m.Payload)
		}
		return nil
	})
	s.hearing.Store(false)
	if s.cluster != nil {
		s.cluster.look()
	}
	return n.dialer.discreet(err)
}

// endWith calls cancel when over is closed, until its result is called, which
// waits for it.
func endWith(over <-chan struct{}, cancel func()) func() {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-over:
			cancel()
		case <-stop:
		}
	}()
	return func() { close(stop); <-ended }
}

// heard answers a question, or passes an answer or a hint on. A hint is dropped if the daemon does not keep
// up with them.
func (s *Store) heard(payload string) {
	if text, ok := strings.CutPrefix(payload, questionMark); ok {
		s.asked(text)
		return
	}
	if text, ok := strings.CutPrefix(payload, answerMark); ok {
		s.asks.answered(text)
		return
	}
	h, ok := parseHint(payload)
	if !ok {
		return
	}
	if h.Key, ok = strings.CutPrefix(h.Key, s.cfg.Prefix); !ok {
		return
	}
	select {
	case s.hints <- h:
	default:
	}
}

// parseHint reads what tells about a lock or a semaphore (lua/slow.lua, lua/semaphore.lua).
// What it does not know is for daemons of another version.
func parseHint(payload string) (h upstream.Hint, ok bool) {
	if payload == "" {
		return h, false
	}
	h.Key = payload[1:]
	switch payload[0] {
	case 'f':
		h.Kind = cache.HintAvailable
	case 'w':
		h.Kind = cache.HintContended
	case 't':
		h.Kind = cache.HintTried
	case 'F':
		var number string
		number, h.Key, _ = strings.Cut(h.Key, " ")
		n, err := strconv.ParseUint(number, 36, 64)
		if err != nil {
			return h, false
		}
		h.Kind, h.Mode, h.Token = cache.HintAvailable, cache.Permit, n
	case 'W':
		h.Kind, h.Mode = cache.HintContended, cache.Permit
	default:
		return h, false
	}
	return h, true
}
