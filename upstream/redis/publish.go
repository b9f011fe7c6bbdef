package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// publish sends messages to other daemons until ctx ends. Messages may be lost.
func (s *Store) publish(ctx context.Context) {
	for {
		var next string
		select {
		case <-ctx.Done():
			return
		case next = <-s.hintQueue:
		case next = <-s.messageQueue:
		}
		pipes := map[*node]goredis.Pipeliner{}
		for n, more := 1, true; more; n++ {
			s.address(ctx, pipes, next)
			next, more = s.nextMessage(n)
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		for _, p := range pipes {
			if _, err := p.Exec(ctx); err != nil && s.cluster != nil {
				s.cluster.requestRefresh()
			}
		}
		cancel()
	}
}

// maxMessages is how many questions and answers are sent at a time. Hints that arrive meanwhile
// wait for them.
const maxMessages = 64

// nextMessage returns the message to send after n others: a hint, or else a question or answer.
// Hints come first, because waiting hosts depend on them.
func (s *Store) nextMessage(n int) (m string, ok bool) {
	if n > hintBuffer {
		return "", false
	}
	select {
	case m = <-s.hintQueue:
		return m, true
	default:
	}
	if n >= maxMessages {
		return "", false
	}
	select {
	case m = <-s.messageQueue:
		return m, true
	default:
		return "", false
	}
}

// sendMessage queues "INSTANCE TEXT", a question or an answer. It drops the message if the server
// does not keep up.
func (s *Store) sendMessage(text string) {
	select {
	case s.messageQueue <- text:
	default:
	}
}

// address adds "INSTANCE HINT" to the pipeline of the node at which the instance listens.
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

// sendHints queues "INSTANCE HINT" for each of hints. It drops the rest if the server does not keep
// up.
func (s *Store) sendHints(hints ...string) {
	for _, h := range hints {
		select {
		case s.hintQueue <- h:
		default:
			return
		}
	}
}
