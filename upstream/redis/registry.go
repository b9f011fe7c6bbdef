package redis

import (
	"context"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// daemonKind precedes the instance id in the name of a daemon's entry. In a cluster the entry is in
// the slot of the instance id.
const daemonKind = "daemon:"

// registered returns the name of an instance's entry, and its slot.
func (s *Store) registered(instance string) (name string, slot uint16) {
	slot = s.slotOf("", instance)
	return s.names[slot].siblings + daemonKind + instance, slot
}

// Register writes the entry, which expires by itself.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) error {
	name, slot := s.registered(s.instance)
	err := s.onNode(ctx, slot, func(n *node) error {
		return n.client.Do(ctx, "set", name, r.Encode(), "px", ttl.Milliseconds()).Err()
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

// Unregister deletes the entry.
func (s *Store) Unregister(ctx context.Context) error {
	name, slot := s.registered(s.instance)
	err := s.onNode(ctx, slot, func(n *node) error { return n.client.Del(ctx, name).Err() })
	if err != nil {
		return fmt.Errorf("unregister: %w", err)
	}
	return nil
}

// Registered reads the entries of one slot in one round trip.
func (s *Store) Registered(
	ctx context.Context, ids []string,
) (map[string]upstream.Registration, error) {
	bySlot := map[uint16][]string{} // a single slot without a cluster
	for _, id := range ids {
		if upstream.ValidInstance(id) {
			_, slot := s.registered(id)
			bySlot[slot] = append(bySlot[slot], id)
		}
	}
	found := map[string]upstream.Registration{}
	for slot, ids := range bySlot {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i], _ = s.registered(id)
		}
		var texts []any
		err := s.onNode(ctx, slot, func(n *node) (err error) {
			texts, err = n.client.MGet(ctx, names...).Result()
			return err
		})
		if err != nil {
			return found, fmt.Errorf("read registrations: %w", err)
		}
		for i, v := range texts {
			if text, _ := v.(string); text != "" {
				if r, ok := upstream.ParseRegistration(text); ok {
					found[ids[i]] = r
				}
			}
		}
	}
	return found, nil
}

// Holders reads one key in two round trips. The holders' daemons have to be asked for Held, because
// the server does not store when a lease began.
func (s *Store) Holders(
	ctx context.Context, key string, mode cache.Mode, limit int,
) (locks []upstream.Lock, err error) {
	if s.reserved(key) || limit < 1 {
		return nil, nil
	}
	name := s.cfg.Prefix + key
	at := name
	if mode == cache.Permit {
		at = s.siblings(name) + permitsKind + name
	}
	err = s.onNode(ctx, s.slotOf("", name), func(n *node) error {
		clock, err := n.client.Time(ctx).Result()
		if err != nil {
			return err
		}
		now := clock.UnixMilli()
		p := n.client.Pipeline()
		l := s.queryLock(ctx, p, at, now, 0, limit)
		if _, err := p.Exec(ctx); err != nil && (!isReply(err) ||
			strings.HasPrefix(err.Error(), "MOVED ")) {
			return err
		}
		locks = l.locks(s, now)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the holder: %w", err)
	}
	locks = locks[:min(limit, len(locks))]
	for i := range locks {
		locks[i].Asker = s
	}
	return locks, nil
}

// onNode calls do with the node that serves a slot. It follows redirections to another node.
func (s *Store) onNode(ctx context.Context, slot uint16, do func(*node) error) error {
	if s.cluster != nil {
		if err := s.cluster.ensureMap(ctx); err != nil {
			return err
		}
	}
	n := s.serves(slot)
	for try := 0; ; try++ {
		if n == nil {
			return fmt.Errorf("no node of the cluster serves slot %d", slot)
		}
		err := do(n)
		switch {
		case err == nil || err == goredis.Nil:
			return nil
		case !isReply(err):
			return n.unreached(err)
		}
		kind, rest, _ := strings.Cut(err.Error(), " ")
		if kind != "MOVED" || s.cluster == nil || try == 2 {
			return n.unreached(err)
		}
		n = s.cluster.moved(slot, rest, n)
	}
}
