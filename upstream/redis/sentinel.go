package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// switchChannel is the channel on which sentinels announce a new master.
const switchChannel = "+switch-master"

// memoryTime is how long the answer of one sentinel outweighs older answers of others.
const memoryTime = 30 * time.Second

// sentinel finds the master.
type sentinel struct {
	store *Store
	nodes []*node

	mu       sync.Mutex
	latest   masterAnswer // the answer with the highest epoch; guarded by mu
	latestAt time.Time    // when latest arrived; guarded by mu
}

func newSentinel(s *Store) *sentinel {
	t := &sentinel{store: s}
	cfg := s.cfg
	cfg.User, cfg.Password, cfg.PasswordFile, cfg.DB = cfg.SentinelUser, "",
		cfg.SentinelPasswordFile, 0
	cfg.TLS.On = cfg.TLS.On && !cfg.SentinelPlain
	for _, addr := range cfg.Hosts {
		c := cfg
		c.Addr = addr
		n := &node{addr: addr, dialer: newDialer(&c, nil, new(atomic.Int64))}
		n.client = c.client(n.dialer, nil)
		t.nodes = append(t.nodes, n)
	}
	return t
}

func (c *Config) sentinelCredentials() (user, password string, err error) {
	return (&storeurl.URL{User: c.SentinelUser, PasswordFile: c.SentinelPasswordFile}).Credentials()
}

func (t *sentinel) close() (err error) {
	for _, n := range t.nodes {
		err = errors.Join(err, n.client.Close())
	}
	return err
}

// masterAnswer is the answer of one sentinel.
type masterAnswer struct {
	addr  string
	epoch int
	err   error
}

// master asks all sentinels at once and takes the latest of their answers. When most have answered,
// it does not wait for the others. After a while, one answer is enough.
func (t *sentinel) master(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.store.cfg.Timeout*3/4)
	answers := make(chan masterAnswer, len(t.nodes))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, n := range t.nodes {
		wg.Go(func() { answers <- n.askMaster(ctx, t.store.cfg.Master) })
	}
	best, said := masterAnswer{epoch: -1}, 0
	var errs []error
	var patience <-chan time.Time
	for left := len(t.nodes); left > 0 && said <= len(t.nodes)/2; {
		select {
		case a := <-answers:
			left--
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			if said++; a.epoch > best.epoch {
				best = a
			}
			if patience == nil {
				patience = time.After(t.store.cfg.Timeout / 4)
			}
		case <-patience:
			left = 0
		}
	}
	if said == 0 {
		return "", fmt.Errorf("ask the sentinels: %w", errors.Join(unique(errs)...))
	}
	return t.learn(best), nil
}

// learn records the answer of a sentinel, and returns where the master is according to all answers.
// Sentinels learn of a new master one after the other, while the old master may still claim to be
// one. So an older answer must not lead back to it. If the master has changed, earlier connections
// are not used again.
func (t *sentinel) learn(a masterAnswer) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if a.epoch < t.latest.epoch && now.Sub(t.latestAt) < memoryTime {
		return t.latest.addr
	}
	if a.addr != t.latest.addr && t.latest.addr != "" {
		t.store.log.Warn("the master has changed",
			zap.String("master", t.store.cfg.Master), zap.String("from", t.latest.addr),
			zap.String("to", a.addr))
		t.store.single.dialer.retire()
	}
	t.latest, t.latestAt = a, now
	return a.addr
}

// unique removes errors with equal texts.
func unique(errs []error) (out []error) {
	for _, e := range errs {
		if !slices.ContainsFunc(out, func(o error) bool { return o.Error() == e.Error() }) {
			out = append(out, e)
		}
	}
	return out
}

// askMaster asks one sentinel. During a failover, SENTINEL MASTER has the new epoch and still the
// old address. So the address is requested separately.
func (n *node) askMaster(ctx context.Context, name string) masterAnswer {
	p := n.client.Pipeline()
	all := goredis.NewStringSliceCmd(ctx, "sentinel", "master", name)
	at := goredis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", name)
	_ = p.BatchProcess(ctx, all, at)
	_, err := p.Exec(ctx) // Only err tells why there was no connection.
	if err = cmp.Or(all.Err(), at.Err(), err); err != nil {
		return masterAnswer{err: n.sentinelError(ctx, name, err)}
	}
	fields, addr := all.Val(), at.Val()
	epoch := slices.Index(fields, "config-epoch") + 1
	if len(addr) != 2 || epoch == 0 || epoch == len(fields) {
		return masterAnswer{err: fmt.Errorf("sentinel at %s: its answer makes no sense", n.addr)}
	}
	a := masterAnswer{addr: net.JoinHostPort(addr[0], addr[1])}
	a.epoch, _ = strconv.Atoi(fields[epoch])
	return a
}

// sentinelError adds to an error what to change.
func (n *node) sentinelError(ctx context.Context, name string, err error) error {
	msg := err.Error()
	switch {
	case strings.Contains(msg, "No such master"):
		names := "it knows no master at all"
		if known := n.masters(ctx); len(known) > 0 {
			names = "it knows " + strings.Join(known, ", ")
		}
		return fmt.Errorf("%w: the sentinel at %s knows no master %q, which is what the store "+
			"URL's path names; %s", ErrServer, n.addr, name, names)
	case isReply(err) && strings.Contains(msg, "unknown command"):
		return fmt.Errorf("%w: at %s there is no sentinel, as redis+sentinel:// in the store URL "+
			"says", ErrServer, n.addr)
	case strings.Contains(msg, "NOAUTH"), strings.Contains(msg, "WRONGPASS"):
		return fmt.Errorf("sentinel at %s: %w (look at sentinel_user= and "+
			"sentinel_password_file= in the store URL: its own user and password are for the "+
			"master)", n.addr, err)
	}
	return fmt.Errorf("sentinel at %s: %w", n.addr, err)
}

// masters returns the names that a sentinel knows.
func (n *node) masters(ctx context.Context) (names []string) {
	list, _ := n.client.Do(ctx, "sentinel", "masters").Slice()
	for _, x := range list {
		fields, _ := x.([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "name" {
				names = append(names, fmt.Sprintf("%q", fields[i+1]))
			}
		}
	}
	slices.Sort(names)
	return names
}

// follow subscribes to every sentinel, so that connections to a former master are given up at once.
func (t *sentinel) follow(ctx context.Context) {
	for _, n := range t.nodes {
		t.store.wg.Go(func() { t.watch(ctx, n) })
	}
}

func (t *sentinel) watch(ctx context.Context, n *node) {
	retryUntilDone(ctx, func(up func()) error {
		ps := n.client.Subscribe(ctx, switchChannel)
		defer ps.Close()
		return receive(ctx, ps, func(m any) error {
			if _, ok := m.(*goredis.Subscription); ok {
				up() // The master may have changed before the subscription.
			} else if m, ok := m.(*goredis.Message); !ok || !strings.HasPrefix(m.Payload,
				t.store.cfg.Master+" ") {
				return nil
			}
			if a := n.askMaster(ctx, t.store.cfg.Master); a.err == nil {
				t.learn(a)
			}
			return nil
		})
	}, func(error) {})
}
