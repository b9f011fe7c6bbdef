package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	minScan    = 16   // the smallest number of names that one SCAN visits
	maxScan    = 256  // the number of names that one SCAN visits for a long page
	maxRest    = 4096 // the maximum number of names in a cursor
	maxCursor  = 3500 // the maximum number of bytes in a cursor: clients return at most 4096
	scanSteps  = 64   // SCANs in one List: a page that is short or empty may not be the last
	maxReaders = 1000 // the maximum number of readers that are listed for one lock
)

// position is the start of a page of List. It has the node and SCAN's own cursor. It also has the
// names of the last SCAN that did not fit on the previous page, and how many holders of the first
// such name did fit. The names are kept because a second SCAN with an old cursor can return other
// names, once the server's table of names has grown.
type position struct {
	Node string
	Rest []string `json:",omitempty"`
	Skip int      `json:",omitempty"`
	Scan uint64   `json:",omitempty"`
	Done bool     `json:",omitempty"` // SCAN has reached its end
}

func (p position) String() string {
	b, _ := json.Marshal(p) // never fails
	return string(b)
}

var errCursor = errors.New("list locks: the cursor is not one of this store's")

func parsePosition(s string) (p position, err error) {
	if err := json.Unmarshal([]byte(s), &p); err != nil || p.Skip < 0 || len(p.Rest) > maxRest {
		return p, errCursor
	}
	return p, nil
}

// List walks the names with SCAN, a bounded number of them in a call. In a cluster, it walks node
// by node. A shared lock appears once for each reader, and a semaphore once for each permit that is
// held. A page can hold fewer locks than limit, or none, and not be the last: only an empty next
// marks the last page.
func (s *Store) List(
	ctx context.Context, prefix, cursor string, limit int,
) (locks []upstream.Lock, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("list locks: limit %d is too small", limit)
	}
	nodes, err := s.listedNodes(ctx)
	if err != nil {
		return nil, "", err
	}
	at := position{Node: nodes[0].addr}
	if cursor != "" {
		if at, err = parsePosition(cursor); err != nil {
			return nil, "", err
		}
	}
	for range scanSteps {
		// If a node is no longer a master, its remaining names are skipped.
		i, ok := slices.BinarySearchFunc(nodes, at.Node, func(n *node, addr string) int {
			return strings.Compare(n.addr, addr)
		})
		if i == len(nodes) {
			return locks, "", nil
		}
		if !ok {
			at = position{Node: nodes[i].addr}
		}
		room := limit - len(locks)
		found, err := s.listPage(ctx, nodes[i], prefix, &at, room, min(max(room, minScan), maxScan))
		if err != nil {
			return nil, "", fmt.Errorf("list locks: redis at %v: %w", nodes[i], err)
		}
		locks = append(locks, found...)
		if at.Done && at.Rest == nil {
			if i+1 == len(nodes) {
				return locks, "", nil
			}
			at = position{Node: nodes[i+1].addr}
		}
		if len(locks) == limit {
			break
		}
	}
	return locks, at.String(), nil
}

// listedNodes returns the nodes that have names, by address.
func (s *Store) listedNodes(ctx context.Context) ([]*node, error) {
	if s.cluster == nil {
		return []*node{s.single}, nil
	}
	if err := s.cluster.ensureMap(ctx); err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	nodes := slices.SortedFunc(slices.Values(s.cluster.masterNodes()), func(a, b *node) int {
		return strings.Compare(a.addr, b.addr)
	})
	if len(nodes) == 0 {
		return nil, fmt.Errorf("list locks: %w", errors.New("no node of the cluster is known"))
	}
	return nodes, nil
}

// listPage returns at most room locks, from the names that remain of the last SCAN or else from
// another SCAN, of count names. It advances at.
func (s *Store) listPage(
	ctx context.Context, n *node, prefix string, at *position, room, count int,
) (locks []upstream.Lock, err error) {
	before := *at
	p := n.client.Pipeline()
	clock := p.Time(ctx)
	var scan *goredis.ScanCmd
	if at.Rest == nil {
		scan = p.Scan(ctx, at.Scan, "*"+escape(s.cfg.Prefix+prefix)+"*", int64(count))
	}
	if _, err := p.Exec(ctx); err != nil {
		return nil, err
	}
	if scan != nil {
		at.Rest, at.Scan = scan.Val()
		at.Done, at.Skip = at.Scan == 0, 0
		at.Rest = slices.DeleteFunc(at.Rest, func(n string) bool {
			of, _ := s.ownerOf(n)
			return of == "" || !strings.HasPrefix(of, s.cfg.Prefix+prefix)
		})
	}
	now := clock.Val().UnixMilli()
	queries := make([]query, len(at.Rest))
	p = n.client.Pipeline()
	skip := at.Skip
	for i, name := range at.Rest {
		queries[i] = s.queryLock(ctx, p, name, now, skip, room)
		skip = 0
	}
	if _, err := p.Exec(ctx); err != nil && !isReply(err) {
		return nil, err
	}
	for i := range queries {
		of := queries[i].locks(s, now)
		if len(of) > room {
			at.Rest, at.Skip = at.Rest[i:], at.Skip+room
			if scan != nil && count > 1 && len(at.String()) > maxCursor {
				*at = before
				return s.listPage(ctx, n, prefix, at, room+len(locks), max(count/4, 1))
			}
			return append(locks, of[:room]...), nil
		}
		locks, room, at.Skip = append(locks, of...), room-len(of), 0
	}
	at.Rest = nil
	return locks, nil
}

// escape returns a pattern that matches s alone.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// query has the commands that read one lock.
type query struct {
	name    string
	set     string             // of a semaphore: its name
	skip    int                // holders that an earlier page has
	permits *goredis.ZSliceCmd // of a semaphore: those after them
	value   *goredis.StringCmd
	kind    *goredis.StatusCmd
	left    *goredis.IntCmd // PTTL itself: go-redis's own makes -1 and -2 a duration
	readers *goredis.ZSliceCmd
	waiters *goredis.IntCmd
}

func (s *Store) queryLock(
	ctx context.Context, p goredis.Pipeliner, name string, now int64, skip, room int,
) query {
	of, permits := s.ownerOf(name)
	if permits {
		return s.queryPermits(ctx, p, name, of, now, skip, room)
	}
	siblings := s.siblings(name)
	q := query{name: name, skip: skip, value: p.Get(ctx, name), kind: p.Type(ctx, name),
		left: goredis.NewIntCmd(ctx, "pttl", name)}
	_ = p.Process(ctx, q.left)
	q.readers = p.ZRangeWithScores(ctx, siblings+"readers:"+name, -maxReaders, -1)
	q.waiters = p.ZCount(ctx, siblings+"waiters:"+name, "("+strconv.FormatInt(now, 10), "+inf")
	return q
}

// locks reads the replies. An exclusive lock gives one result, a shared lock one for each reader, a
// semaphore one for each permit that is held, and a lock that is gone none.
func (q *query) locks(s *Store, now int64) []upstream.Lock {
	if q.permits != nil {
		return q.semaphore(s, now)
	}
	ms := q.left.Val()
	lock := upstream.Lock{Key: strings.TrimPrefix(q.name, s.cfg.Prefix), Name: q.name,
		Left: -1, Waiters: -1}
	if ms >= 0 {
		lock.Left = ms * int64(time.Millisecond)
	}
	if q.waiters.Err() == nil {
		lock.Waiters = int(q.waiters.Val())
	}
	value, err := q.value.Result()
	switch {
	case ms == -2 || q.kind.Val() == "none":
		return nil
	case err != nil: // of another type
		lock.Foreign, lock.Holder = true, "a "+q.kind.Val()
		return []upstream.Lock{lock}
	case value != readersValue:
		s.heldBy(&lock, value)
		return []upstream.Lock{lock}
	}
	lock.Mode = cache.Shared
	locks := s.holders(lock, q.readers.Val(), now)
	if locks == nil { // The set was deleted.
		locks = append(locks, lock)
	}
	return locks[min(q.skip, len(locks)):]
}

// readersValue is the value of the lock's own key while readers hold it. fast.lua has the same.
const readersValue = siblingPrefix + "readers"

// holders returns a copy of lock for each of its holders.
func (s *Store) holders(lock upstream.Lock, set []goredis.Z, now int64) (locks []upstream.Lock) {
	for _, z := range set {
		token, _ := z.Member.(string)
		if int64(z.Score) <= now {
			continue
		}
		one := lock
		one.Left = (int64(z.Score) - now) * int64(time.Millisecond)
		s.heldBy(&one, token)
		locks = append(locks, one)
	}
	return locks
}

// heldBy sets the holder of l from the token.
func (s *Store) heldBy(l *upstream.Lock, token string) {
	if l.Holder, l.Token, l.Mine, l.Foreign = s.holder(token); !l.Foreign {
		l.Daemon = l.Holder
	}
}

// maxHolder is the number of characters that are shown of a foreign value.
const maxHolder = 64

// holder identifies the owner of a token. Of our own tokens it shows the instance but not the
// number, which would prove the lease.
func (s *Store) holder(token string) (who string, number uint64, mine, foreign bool) {
	instance, text, _ := strings.Cut(token, ".")
	if n, err := strconv.ParseUint(text, 36, 64); err == nil && upstream.ValidInstance(instance) {
		return instance, n, instance == s.instance, false
	}
	if r := []rune(strings.ToValidUTF8(token, "?")); len(r) > maxHolder {
		return string(r[:maxHolder]) + "…", 0, false, true
	}
	return strings.ToValidUTF8(token, "?"), 0, false, true
}
