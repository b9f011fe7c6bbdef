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
	scanLeast = 16   // names that the server looks at in one go …
	scanStep  = 256  // … or so many, for a long page
	longRest  = 4096 // the most names in a cursor
	scanSteps = 64   // goes in one List: a page may be short, or empty, and not the last
	longNames = 1000 // the most readers of one lock that are listed
)

var _ upstream.Lister = (*Store)(nil)

// place is where a page of List begins: the node, the names that SCAN gave before
// and that did not fit on the page, with how many holders of the first did, and
// SCAN's own cursor for what comes then. Asking SCAN again with an old cursor would
// not do: it may give other names after the table of names has grown.
type place struct {
	Node string
	Rest []string `json:",omitempty"`
	Skip int      `json:",omitempty"`
	Scan uint64   `json:",omitempty"`
	Done bool     `json:",omitempty"` // SCAN has come to its end
}

func (p place) String() string {
	b, _ := json.Marshal(p) // never fails
	return string(b)
}

var errCursor = errors.New("list locks: the cursor is not one of this store's")

func parsePlace(s string) (p place, err error) {
	if err := json.Unmarshal([]byte(s), &p); err != nil || p.Skip < 0 || len(p.Rest) > longRest {
		return p, errCursor
	}
	return p, nil
}

// List walks the names with SCAN, a bounded number of them a call, node by node in
// a cluster. A shared lock is there once for each reader, a semaphore once for each
// permit that is held. A page can hold fewer
// locks than limit, or none, and not be the last: only an empty next says that.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) (locks []upstream.Lock, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("list locks: limit %d is too small", limit)
	}
	nodes, err := s.listed(ctx)
	if err != nil {
		return nil, "", err
	}
	at := place{Node: nodes[0].addr}
	if cursor != "" {
		if at, err = parsePlace(cursor); err != nil {
			return nil, "", err
		}
	}
	for range scanSteps {
		// Of a node that is no master any more, the rest is lost: the next one's turn.
		i, ok := slices.BinarySearchFunc(nodes, at.Node, func(n *node, addr string) int { return strings.Compare(n.addr, addr) })
		if i == len(nodes) {
			return locks, "", nil
		}
		if !ok {
			at = place{Node: nodes[i].addr}
		}
		found, err := s.page(ctx, nodes[i], prefix, &at, limit-len(locks))
		if err != nil {
			return nil, "", fmt.Errorf("list locks: redis at %v: %w", nodes[i], err)
		}
		locks = append(locks, found...)
		if at.Done && at.Rest == nil {
			if i+1 == len(nodes) {
				return locks, "", nil
			}
			at = place{Node: nodes[i+1].addr}
		}
		if len(locks) == limit {
			break
		}
	}
	return locks, at.String(), nil
}

// listed are the nodes with names on them, by address.
func (s *Store) listed(ctx context.Context) ([]*node, error) {
	if s.cluster == nil {
		return []*node{s.one}, nil
	}
	if err := s.cluster.known(ctx); err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	nodes := slices.SortedFunc(slices.Values(s.cluster.all()), func(a, b *node) int { return strings.Compare(a.addr, b.addr) })
	if len(nodes) == 0 {
		return nil, fmt.Errorf("list locks: %w", errors.New("no node of the cluster is known"))
	}
	return nodes, nil
}

// page is at most room locks: of the names that are left over, or else of those that
// one SCAN gives. It moves at on.
func (s *Store) page(ctx context.Context, n *node, prefix string, at *place, room int) (locks []upstream.Lock, err error) {
	p := n.client.Pipeline()
	clock := p.Time(ctx)
	var scan *goredis.ScanCmd
	if at.Rest == nil {
		scan = p.Scan(ctx, at.Scan, "*"+escape(s.cfg.Prefix+prefix)+"*", int64(min(max(room, scanLeast), scanStep)))
	}
	if _, err := p.Exec(ctx); err != nil {
		return nil, err
	}
	if scan != nil {
		at.Rest, at.Scan = scan.Val()
		at.Done, at.Skip = at.Scan == 0, 0
		at.Rest = slices.DeleteFunc(at.Rest, func(n string) bool {
			of, _ := s.ofWhat(n)
			return of == "" || !strings.HasPrefix(of, s.cfg.Prefix+prefix)
		})
	}
	now := clock.Val().UnixMilli()
	looks := make([]look, len(at.Rest))
	p = n.client.Pipeline()
	skip := at.Skip
	for i, name := range at.Rest {
		looks[i] = s.lookAt(ctx, p, name, now, skip, room)
		skip = 0
	}
	if _, err := p.Exec(ctx); err != nil && !isReply(err) {
		return nil, err
	}
	for i := range looks {
		of := looks[i].locks(s, now)
		if len(of) > room {
			at.Rest, at.Skip = at.Rest[i:], at.Skip+room
			return append(locks, of[:room]...), nil
		}
		locks, room, at.Skip = append(locks, of...), room-len(of), 0
	}
	at.Rest = nil
	return locks, nil
}

// escape makes a text match itself alone.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// look is one lock's commands.
type look struct {
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

func (s *Store) lookAt(ctx context.Context, p goredis.Pipeliner, name string, now int64, skip, room int) look {
	of, permits := s.ofWhat(name)
	if permits {
		return s.lookAtPermits(ctx, p, name, of, now, skip, room)
	}
	siblings := s.siblings(name)
	l := look{name: name, skip: skip, value: p.Get(ctx, name), kind: p.Type(ctx, name), left: goredis.NewIntCmd(ctx, "pttl", name)}
	_ = p.Process(ctx, l.left)
	l.readers = p.ZRangeWithScores(ctx, siblings+"readers:"+name, -longNames, -1)
	l.waiters = p.ZCount(ctx, siblings+"waiters:"+name, "("+strconv.FormatInt(now, 10), "+inf")
	return l
}

// locks reads the answers: a lock held exclusively is one, a shared one as many as
// it has readers, a semaphore as many as it has permits held, one that is gone none.
func (l *look) locks(s *Store, now int64) []upstream.Lock {
	if l.permits != nil {
		return l.semaphore(s, now)
	}
	ms := l.left.Val()
	lock := upstream.Lock{Key: strings.TrimPrefix(l.name, s.cfg.Prefix), Name: l.name, Left: -1, Waiters: -1}
	if ms >= 0 {
		lock.Left = ms * int64(time.Millisecond)
	}
	if l.waiters.Err() == nil {
		lock.Waiters = int(l.waiters.Val())
	}
	value, err := l.value.Result()
	switch {
	case ms == -2 || l.kind.Val() == "none":
		return nil
	case err != nil: // of another type
		lock.Foreign, lock.Holder = true, "a "+l.kind.Val()
		return []upstream.Lock{lock}
	case value != readersValue:
		s.heldBy(&lock, value)
		return []upstream.Lock{lock}
	}
	lock.Mode = cache.Shared
	locks := s.holders(lock, l.readers.Val(), now)
	if locks == nil { // somebody has thrown the set away
		locks = append(locks, lock)
	}
	return locks[min(l.skip, len(locks)):]
}

// readersValue is the lock's own value while readers hold it; fast.lua has it too.
const readersValue = siblingPrefix + "readers"

// holders is lock once for each of those who hold it.
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

// heldBy sets the holder of l from its token.
func (s *Store) heldBy(l *upstream.Lock, token string) {
	if l.Holder, l.Token, l.Mine, l.Foreign = s.holder(token); !l.Foreign {
		l.Daemon = l.Holder
	}
}

// longHolder is how much of a foreign value is shown.
const longHolder = 64

// holder says who has put a token there: our tokens show their instance and not
// their number, which would prove the lease.
func (s *Store) holder(token string) (who string, number uint64, mine, foreign bool) {
	instance, text, _ := strings.Cut(token, ".")
	if n, err := strconv.ParseUint(text, 36, 64); err == nil && upstream.ValidInstance(instance) {
		return instance, n, instance == s.instance, false
	}
	if r := []rune(strings.ToValidUTF8(token, "?")); len(r) > longHolder {
		return string(r[:longHolder]) + "…", 0, false, true
	}
	return strings.ToValidUTF8(token, "?"), 0, false, true
}
