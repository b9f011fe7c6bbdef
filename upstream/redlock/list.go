package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
)

// The bounds of a listing: the size of a page from a node, the number of all locks, and how long a
// listing serves later pages.
const (
	listPage = 1000
	listMax  = 1 << 20
	listLife = 30 * time.Second
)

// listing holds the locks of the last listing, for its later pages.
type listing struct {
	sync.Mutex
	prefix string // guarded by Mutex, as are the fields below
	at     time.Time
	locks  []upstream.Lock
}

// List lists all nodes once for all pages, and reports on how many nodes each lease is. It leaves
// out nodes that do not answer, but counts them.
func (s *Store) List(
	ctx context.Context, prefix, cursor string, limit int,
) ([]upstream.Lock, string, error) {
	l := &s.listing
	l.Lock()
	defer l.Unlock()
	if cursor == "" || prefix != l.prefix || time.Since(l.at) > listLife {
		locks, err := s.gather(ctx, prefix)
		if err != nil {
			return nil, "", fmt.Errorf("list locks: %w", err)
		}
		l.prefix, l.at, l.locks = prefix, time.Now(), locks
	}
	from, found := slices.BinarySearchFunc(l.locks, cursor, func(x upstream.Lock, c string) int {
		return cmp.Compare(place(&x), c)
	})
	if found {
		from++
	}
	to := min(from+max(limit, 1), len(l.locks))
	page := slices.Clone(l.locks[from:to])
	if to < len(l.locks) {
		return page, place(&page[len(page)-1]), nil
	}
	l.locks = nil
	l.prefix, l.at = "", time.Time{}
	return page, "", nil
}

// place returns the position of a lock in a listing. Keys have no control characters.
func place(x *upstream.Lock) string { return x.Key + "\x00" + x.Holder }

// gather lists all locks of all nodes.
func (s *Store) gather(ctx context.Context, prefix string) ([]upstream.Lock, error) {
	each := make([][]upstream.Lock, len(s.nodes))
	errs := s.onNodes(ctx, func(ctx context.Context, n *node) (err error) {
		each[n.i], err = n.list(ctx, prefix)
		return err
	})
	silent := countErrors(errs)
	if err := errors.Join(errs...); err != nil &&
		(silent == len(s.nodes) || ctx.Err() != nil || s.ctx.Err() != nil || errors.Is(err, errTooMany)) {
		return nil, err
	}
	return s.merge(each, errs), nil
}

var errTooMany = fmt.Errorf("there are more than %d locks; ask for a longer prefix", listMax)

func (n *node) list(ctx context.Context, prefix string) (all []upstream.Lock, err error) {
	l := n.store.Capabilities().Lister
	if l == nil {
		return nil, errors.New("it cannot list locks")
	}
	for cursor := ""; ; {
		page, next, err := l.List(ctx, prefix, cursor, listPage)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(all) > listMax {
			return nil, errTooMany
		}
		if cursor = next; cursor == "" {
			return all, nil
		}
	}
}

func countErrors(errs []error) (n int) {
	for _, err := range errs {
		if err != nil {
			n++
		}
	}
	return n
}

// found is a lock, merged from the nodes' answers.
type found struct {
	upstream.Lock
	on set
}

// mergeByHolder merges the nodes' answers about the same holder of the same key into one lock.
func mergeByHolder(each [][]upstream.Lock) map[string]*found {
	byHolder := map[string]*found{}
	for n, locks := range each {
		for i := range locks {
			x := &locks[i]
			f := byHolder[place(x)]
			if f == nil {
				f = &found{Lock: *x}
				byHolder[place(x)] = f
			}
			f.on.add(n)
			f.Mine, f.Foreign = f.Mine || x.Mine, f.Foreign && x.Foreign
			f.Left, f.Base, f.Waiters = max(f.Left, x.Left), max(f.Base, x.Base), max(f.Waiters, x.Waiters)
		}
	}
	return byHolder
}

// merge returns the locks of all nodes, each once. errs has an error for each node that did not
// answer.
func (s *Store) merge(each [][]upstream.Lock, errs []error) []upstream.Lock {
	all := slices.Collect(maps.Values(mergeByHolder(each)))
	nodes, silent := len(s.nodes), countErrors(errs)
	for _, f := range all {
		f.Holder = strings.TrimSpace(fmt.Sprintf("%s (on %d of %d nodes)", f.Holder, f.on.count(), nodes))
		f.Note = s.disagreement(f.on, errs)
		if silent > 0 {
			f.Holder = fmt.Sprintf("%s, %d silent)", strings.TrimSuffix(f.Holder, ")"), silent)
		}
	}
	slices.SortFunc(all, func(a, b *found) int { return cmp.Compare(place(&a.Lock), place(&b.Lock)) })
	locks := make([]upstream.Lock, len(all))
	for i, f := range all {
		locks[i] = f.Lock
	}
	return locks
}
