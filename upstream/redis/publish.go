package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// publish sends other daemons what is meant for them until ctx ends. It may be lost.
func (s *Store) publish(ctx context.Context) {
	for {
		var next string
		select {
		case <-ctx.Done():
			return
		case next = <-s.told:
		case next = <-s.talk:
		}
		pipes := map[*node]goredis.Pipeliner{}
		for n, more := 1, true; more; n++ {
			s.address(ctx, pipes, next)
			next, more = s.nextMessage(n)
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		for _, p := range pipes {
			if _, err := p.Exec(ctx); err != nil && s.cluster != nil {
				s.cluster.look()
			}
		}
		cancel()
	}
}

// talkMost is how many questions and answers are sent at a time. Hints that are made meanwhile wait for them.
const talkMost = 64

// nextMessage returns the message to send after n others: a hint, else a question or an answer. Hints come first,
// because waiting hosts depend on them.
func (s *Store) nextMessage(n int) (m string, ok bool) {
	if n > hintBuffer {
		return "", false
	}
	select {
	case m = <-s.told:
		return m, true
	default:
	}
	if n >= talkMost {
		return "", false
	}
	select {
	case m = <-s.talk:
		return m, true
	default:
		return "", false
	}
}

// say has "INSTANCE TEXT" sent, a question or an answer, unless the server does not keep up with them.
func (s *Store) say(text string) {
	select {
	case s.talk <- text:
	default:
	}
}

// address puts "INSTANCE HINT" where the instance listens.
func (s *Store) address(ctx context.Context, pipes map[*node]goredis.Pipeliner, hint string) {
	instance, payload, _ := strings.Cut(hint, " ")
	channel := hintChannel + instance
	n := s.serves(slotOf("", channel))
	if n == nil || n.silent.Load() {
		return
	}
	if pipes[n] == nil {
		pipes[n] = n.client.Pipeline()
	}
	if s.cluster == nil {
		pipes[n].Publish(ctx, channel, payload)
	} else {
		pipes[n].SPublish(ctx, channel, payload)
	}
}

// tell has "INSTANCE HINT" sent for each of hints, unless the server does not keep up with them.
func (s *Store) tell(hints ...string) {
	for _, h := range hints {
		select {
		case s.told <- h:
		default:
			return
		}
	}
}
