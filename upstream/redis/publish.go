package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// publish sends other daemons what is meant for them until ctx ends. It may be lost.
func (s *Store) publish(ctx context.Context) {
	for {
		var first string
		select {
		case <-ctx.Done():
			return
		case first = <-s.told:
		}
		pipes := map[*node]goredis.Pipeliner{}
		for n := 0; ; n++ {
			s.address(ctx, pipes, first)
			if len(s.told) == 0 || n == hintBuffer {
				break
			}
			first = <-s.told
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
