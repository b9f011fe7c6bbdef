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

var _ upstream.Registrar = (*Store)(nil)

// each calls do for every node that is a Registrar, at the same time, and returns what each said.
// These calls do not vote, and a node that fails one of them keeps its vote.
func (s *Store) each(ctx context.Context, do func(ctx context.Context, i int, r upstream.Registrar) error) []error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	errs := make([]error, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		r, ok := n.store.(upstream.Registrar)
		if !ok {
			errs[i] = fmt.Errorf("node %s has no registrations", n.host)
			continue
		}
		wg.Go(func() {
			if err := do(ctx, i, r); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.host, err)
			}
		})
	}
	wg.Wait()
	return errs
}

// unlessOne is the error of nodes of which one is enough.
func unlessOne(errs []error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// Register writes the entry to every node. One node is enough.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) error {
	return unlessOne(s.each(ctx, func(ctx context.Context, _ int, node upstream.Registrar) error { return node.Register(ctx, r, ttl) }))
}

// Unregister deletes the entry from every node. It expires where that fails.
func (s *Store) Unregister(ctx context.Context) error {
	return unlessOne(s.each(ctx, func(ctx context.Context, _ int, node upstream.Registrar) error { return node.Unregister(ctx) }))
}

// Registered returns what any node knows.
func (s *Store) Registered(ctx context.Context, ids []string) (map[string]upstream.Registration, error) {
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

// Holders returns the holders that a quorum may know. Its notes name the nodes that disagree.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) ([]upstream.Lock, error) {
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
	silent, by := countErrors(errs), together(all)
	var locks []upstream.Lock
	for _, at := range slices.Sorted(maps.Keys(by)) {
		f := by[at]
		if f.on.count()+silent <= len(s.nodes)/2 {
			continue // the rest of a try, or of a lease that has ended
		}
		f.Note = s.disagreement(f.on, errs)
		locks = append(locks, f.Lock)
	}
	return locks[:min(limit, len(locks))], nil
}

// disagreement says which nodes do not know a lease that those in on know; empty if all know it.
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
