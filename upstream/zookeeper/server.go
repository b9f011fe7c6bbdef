package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultTick is a server's tickTime unless its configuration has another.
	defaultTick = 2 * time.Second
	// sayMost bounds the answer to a four-letter word.
	sayMost = 64 << 10
)

// errUntold says that a server did not tell its tickTime.
var errUntold = errors.New("it does not tell its tickTime (conf is not in its 4lw.commands.whitelist)")

// checkTick refuses a session that may be shorter than two ticks of its server: see doc.go,
// "The session's deadline". A server that does not tell its tick is taken to have the default
// one, or a shorter one.
func (se *session) checkTick(ctx context.Context) error {
	addr := se.conn.Server()
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	tick, err := se.store.cfg.tick(ctx, addr)
	switch {
	case err == nil && se.ttl < 2*tick:
		return fmt.Errorf("%w: %s grants a session of %v, which is shorter than two of its ticks (tickTime is %v): two hosts could "+
			"hold a lock at once; raise its minSessionTimeout, or session= of the store URL, to %v or more", ErrServer, addr, se.ttl, tick, 2*tick)
	case err == nil || se.ttl >= 2*defaultTick:
		return nil
	case errors.Is(err, errUntold):
		return fmt.Errorf("%w: %s grants a session of %v, which is safe only if its tickTime is at most half of that, and %w: raise session= "+
			"of the store URL to %v or more (and its maxSessionTimeout, if that is less), or add conf to that list",
			ErrServer, addr, se.ttl, err, 2*defaultTick)
	}
	return se.store.noSession(fmt.Errorf("%s does not answer when asked for its tickTime: %w", addr, err))
}

// tick asks a server for its tickTime with the four-letter word conf, on a connection of its
// own.
func (c *Config) tick(ctx context.Context, addr string) (time.Duration, error) {
	conf, err := c.url.TLS.Config(addr)
	if err != nil {
		return 0, err
	}
	conn, err := dial(ctx, addr, conf)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, "conf"); err != nil {
		return 0, err
	}
	said, err := io.ReadAll(io.LimitReader(conn, sayMost))
	if len(said) == 0 && err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(said)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "tickTime="); ok {
			ms, err := strconv.ParseInt(v, 10, 32)
			if err == nil && ms > 0 {
				return time.Duration(ms) * time.Millisecond, nil
			}
		}
	}
	return 0, errUntold
}

// checkHistory refuses a server that has forgotten what this store has seen of it: the session
// has confirmed a transaction there, which comes behind all others.
func (se *session) checkHistory() error {
	if now := se.high.Load(); now <= se.floor {
		return fmt.Errorf("%w: %s is at transaction %d and was at %d: it has lost data, and fences would fall "+
			"(raise fence_epoch on every host by at least %d, then restart the daemons)", ErrServer, se.store.cfg.where(), now, se.floor, se.floor-now+1)
	}
	return nil
}
