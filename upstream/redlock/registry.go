package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Ask sends each question through all nodes, because a daemon may be cut off from some of them.
// A daemon gives each node the same answer.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	clones := make([][]*upstream.Question, len(s.nodes))
	s.each(ctx, func(ctx context.Context, i int, _ upstream.Registrar) error {
		for _, q := range qs {
			clones[i] = append(clones[i], q.Clone())
		}
		if a := s.nodes[i].store.Capabilities().Asker; a != nil {
			a.Ask(ctx, clones[i])
		}
		return nil
	})
	now := time.Now()
	for _, some := range clones {
		for i, c := range some {
			qs[i].Merge(c, now)
		}
	}
}

// Answer makes f answer the questions that other daemons ask through any node.
func (s *Store) Answer(f upstream.HeldFor) {
	atNode := func(key string, mode cache.Mode, numbers []uint64) []int64 {
		tokens := make([]uint64, len(numbers))
		for i, n := range numbers {
			tokens[i] = n >> againBits
		}
		return f(key, mode, tokens)
	}
	for _, n := range s.nodes {
		if a := n.store.Capabilities().Answerer; a != nil {
			a.Answer(atNode)
		}
	}
}

// each calls do for every node that is a Registrar, concurrently, and returns the errors by node. A
// node that fails such a call keeps its vote on locks.
func (s *Store) each(
	ctx context.Context, do func(ctx context.Context, i int, r upstream.Registrar) error,
) []error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.onNodes(ctx, func(ctx context.Context, n *node) error {
		r := n.store.Capabilities().Registrar
		if r == nil {
			return errors.New("it does not support registrations")
		}
		return do(ctx, n.i, r)
	})
}

// onNodes calls do for every node, concurrently, and returns the errors by node. ctx ends early if
// the store is closed.
func (s *Store) onNodes(ctx context.Context, do func(context.Context, *node) error) []error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	errs := make([]error, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		wg.Go(func() {
			if err := do(ctx, n); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.host, err)
			}
		})
	}
	wg.Wait()
	return errs
}

// unlessOne returns nil if at least one node succeeded, else all errors.
func unlessOne(errs []error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// Register writes the entry to every node. It succeeds if one of them does.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) error {
	return unlessOne(s.each(ctx, func(ctx context.Context, _ int, node upstream.Registrar) error {
		return node.Register(ctx, r, ttl)
	}))
}

// Unregister deletes the entry from every node. On a node where that fails, it expires.
func (s *Store) Unregister(ctx context.Context) error {
	return unlessOne(s.each(ctx, func(ctx context.Context, _ int, node upstream.Registrar) error {
		return node.Unregister(ctx)
	}))
}

// Registered returns the entries that at least one node has.
func (s *Store) Registered(
	ctx context.Context, ids []string,
) (map[string]upstream.Registration, error) {
	all := make([]map[string]upstream.Registration, len(s.nodes))
	errs := s.each(ctx, func(ctx context.Context, i int, node upstream.Registrar) (err error) {
		all[i], err = node.Registered(ctx, ids)
		return err
	})
	found := map[string]upstream.Registration{}
	for _, some := range all {
		maps.Copy(found, some)
	}
	return found, unlessOne(errs)
}

// Holders returns the holders that a quorum may have granted. A node that did not answer counts as
// agreeing. The notes name the nodes that disagree.
func (s *Store) Holders(
	ctx context.Context, key string, mode cache.Mode, limit int,
) ([]upstream.Lock, error) {
	if mode == cache.Permit || limit < 1 {
		return nil, nil // there are no semaphores
	}
	all := make([][]upstream.Lock, len(s.nodes))
	errs := s.each(ctx, func(ctx context.Context, i int, node upstream.Registrar) (err error) {
		all[i], err = node.Holders(ctx, key, mode, limit)
		return err
	})
	if err := unlessOne(errs); err != nil {
		return nil, fmt.Errorf("read the holder: %w", err)
	}
	silent, by := countErrors(errs), mergeByHolder(all)
	var locks []upstream.Lock
	for _, at := range slices.Sorted(maps.Keys(by)) {
		f := by[at]
		if f.on.count()+silent <= len(s.nodes)/2 {
			continue // left over from a failed acquire, or from a lease that has ended
		}
		f.Note, f.Asker = s.disagreement(f.on, errs), s
		locks = append(locks, f.Lock)
	}
	return locks[:min(limit, len(locks))], nil
}

// disagreement names the nodes that do not have a lease, or did not answer. on is the set of nodes
// that have it. The result is empty if all nodes have it.
func (s *Store) disagreement(on set, errs []error) string {
	var without, silent []string
	for i, n := range s.nodes {
		switch {
		case errs[i] != nil:
			silent = append(silent, n.host)
		case !on.has(i):
			without = append(without, n.host)
		}
	}
	var parts []string
	if len(without) > 0 {
		parts = append(parts, "not on "+strings.Join(without, ", "))
	}
	if len(silent) > 0 {
		parts = append(parts, "no answer from "+strings.Join(silent, ", "))
	}
	return strings.Join(parts, "; ")
}
