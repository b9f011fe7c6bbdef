package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const hintBuffer = 1024

// listen receives hints until ctx ends. Hints are lost while there is no connection; correctness
// does not depend on them.
func (s *Store) listen(ctx context.Context) {
	down := false
	retryUntilDone(ctx, func(up func()) error {
		return s.subscribe(ctx, func() {
			if down {
				s.log.Info("hints between hosts work again")
			}
			down = false
			s.listening.Store(true)
			up()
		})
	}, func(err error) {
		s.log.Warn("no hints between hosts: polling alone", zap.Error(err))
		down = true
	})
}

var (
	errElsewhere = errors.New("hints come on another node now")
	errNobody    = errors.New("no node serves the slot of the channel for hints")
)

// subscribe receives hints on one connection until the connection fails, the channel moves to
// another node, or ctx ends.
func (s *Store) subscribe(ctx context.Context, up func()) error {
	channel := hintChannel + s.instance
	slot := slotOf("", channel)
	n := s.serves(slot)
	if n == nil {
		s.cluster.requestRefresh()
		return errNobody
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer cancelWhen(n.dialer.now.Load().over, cancel)()
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
			s.receiveMessage(m.Payload)
		}
		return nil
	})
	s.listening.Store(false)
	if s.cluster != nil {
		s.cluster.requestRefresh()
	}
	return n.dialer.redact(err)
}

// cancelWhen starts a goroutine that calls cancel when over is closed. The returned function ends
// the goroutine and waits for it.
func cancelWhen(over <-chan struct{}, cancel func()) func() {
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

// receiveMessage answers a question, or passes on an answer or a hint. It drops the hint if the
// daemon does not keep up.
func (s *Store) receiveMessage(payload string) {
	if text, ok := strings.CutPrefix(payload, questionMark); ok {
		s.answerQuestion(text)
		return
	}
	if text, ok := strings.CutPrefix(payload, answerMark); ok {
		s.questions.deliver(text)
		return
	}
	h, ok := parseHint(payload)
	if !ok {
		return
	}
	if h.Key, ok = strings.CutPrefix(h.Key, s.cfg.Prefix); !ok {
		return
	}
	s.hints.Send(h)
}

// hintLetters are the letters with which a hint begins (lua/slow.lua, lua/semaphore.lua).
var hintLetters = map[byte]upstream.Hint{
	'f': {Kind: cache.HintAvailable},
	'w': {Kind: cache.HintContended},
	't': {Kind: cache.HintTried},
	'F': {Kind: cache.HintAvailable, Mode: cache.Permit}, // a token's number and a space follow
	'W': {Kind: cache.HintContended, Mode: cache.Permit},
}

// parseHint reads a hint about a lock or a semaphore. It ignores hints for daemons of another
// version.
func parseHint(payload string) (h upstream.Hint, ok bool) {
	if payload == "" {
		return h, false
	}
	h, ok = hintLetters[payload[0]]
	if h.Key = payload[1:]; payload[0] == 'F' {
		var number string
		var err error
		number, h.Key, _ = strings.Cut(h.Key, " ")
		h.Token, err = strconv.ParseUint(number, 36, 64)
		ok = err == nil
	}
	return h, ok
}
