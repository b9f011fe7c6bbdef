package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// defaultTick is a server's tickTime unless its configuration has another.
	defaultTick = 2 * time.Second
	// maxWordAnswer limits the answer to a four-letter word, in bytes.
	maxWordAnswer = 64 << 10
)

// errTickUnknown means that a server did not report its tickTime.
var errTickUnknown = errors.New(
	"the server does not tell it (conf is not in its 4lw.commands.whitelist)")

// checkTick refuses a session that may be shorter than two ticks of its server: see doc.go,
// "The session's deadline". If the server does not tell its tick, it is assumed to be at most the
// default.
func (se *session) checkTick(ctx context.Context) error {
	addr := se.conn.Server()
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	tick, err := se.store.cfg.tick(ctx, addr)
	switch {
	case err == nil && se.ttl < 2*tick:
		return fmt.Errorf("%w: %s grants a session of %v, which is shorter than two of its ticks "+
			"(tickTime is %v). Two hosts could hold a lock at once. "+
			"Raise its minSessionTimeout, or session= of the store URL, to %v or more",
			ErrServer, addr, se.ttl, tick, 2*tick)
	case err == nil || se.ttl >= 2*defaultTick:
		return nil
	case errors.Is(err, errTickUnknown):
		return fmt.Errorf("%w: %s grants a session of %v, which is safe only if its tickTime is "+
			"at most half of that; %w. Add conf to that list, or raise session= of the store URL "+
			"to %v or more (and maxSessionTimeout, if it is less)",
			ErrServer, addr, se.ttl, err, 2*defaultTick)
	}
	return se.store.noSession(fmt.Errorf("read the tickTime of %s: %w", addr, err))
}

// tick asks a server for its tickTime with the four-letter word conf, on a separate connection.
func (c *Config) tick(ctx context.Context, addr string) (time.Duration, error) {
	conn, err := c.dial(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, "conf"); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxWordAnswer))
	if len(answer) == 0 && err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(answer)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "tickTime="); ok {
			ms, err := strconv.ParseInt(v, 10, 32)
			if err == nil && ms > 0 {
				return time.Duration(ms) * time.Millisecond, nil
			}
		}
	}
	return 0, errTickUnknown
}

// checkStamp returns an error for a server that has lost a write of the session's own node, and so
// the rest of that transaction. Later transactions may have ids above all that this store has seen:
// a new leader begins above them. now is the node after a write, and before is what was known of it
// before that write was sent, or nil.
func (se *session) checkStamp(now, before *zk.Stat) error {
	if before != nil && !newerStat(now, before) {
		return fmt.Errorf("%w: %s has lost data: %s is version %d of transaction %d and was "+
			"version %d of %d", ErrServer, se.store.cfg.where(), se.self,
			now.Version, now.Czxid, before.Version, before.Czxid)
	}
	for old := se.stamped.Load(); old == nil || newerStat(now, old); old = se.stamped.Load() {
		if se.stamped.CompareAndSwap(old, now) {
			break
		}
	}
	return nil
}

// newerStat reports whether a is a later state of a node than b. Versions wrap around.
func newerStat(a, b *zk.Stat) bool {
	return a.Czxid > b.Czxid || a.Czxid == b.Czxid && a.Version-b.Version > 0
}

// checkHistory returns an error for a server that has lost transactions that this store has seen.
// now is the id of a new transaction, and high is the highest id that was seen before it was sent.
func (s *Store) checkHistory(now, high int64) error {
	if now > high {
		return nil
	}
	return fmt.Errorf("%w: %s is at transaction %d and was at %d: it has lost data, "+
		"and fences would fall (raise fence_epoch on every host by at least %d, "+
		"then restart the daemons, without keep_over_restart)",
		ErrServer, s.cfg.where(), now, high, high-now+1)
}
