package upstream

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// HeldFor returns for each token how long ago this daemon's lease with that token was granted, in
// nanoseconds. It is 0 for a token without a valid lease. The leases are permits of the key's
// semaphore if mode is Permit, else the key's lock. HeldFor does not block.
type HeldFor func(key string, mode cache.Mode, tokens []uint64) []int64

// Asker is a Registrar that does not record when a lease was granted. It asks the daemon of each
// holder, which answers through the store from its own boot clock. So the time costs an acquire
// nothing, and no two clocks are compared. A daemon that does not answer in time, such as an older
// version, leaves Lock.Held unknown.
type Asker interface {
	// Ask sends the questions, and calls Learn for each answer. It waits for all answers, for at most
	// AnswerTime. Questions has made the questions from locks of Holders whose Asker is this Store.
	Ask(ctx context.Context, qs []*Question)
}

// Answerer is a Store that answers the questions of an Asker on another host.
type Answerer interface {
	// Answer makes f answer the questions of other daemons, from any goroutine, until the Store is
	// closed. Without it the Store leaves questions unanswered.
	Answer(f HeldFor)
}

const (
	// AnswerTime is how long an Asker waits for the answers of other daemons.
	AnswerTime = 300 * time.Millisecond

	muteTime  = 5 * time.Second // how long a daemon is not asked after it has not answered
	maxMuted  = 1000            // the maximum number of muted daemons
	maxTokens = 64              // in one question

	// MaxQuestions is the limit of questions that an Asker sends at a time. It leaves others
	// unanswered.
	MaxQuestions = 128

	maxHeld = 10 * 365 * 24 * time.Hour // a longer time in an answer is not believed
)

// Question asks one daemon for how long it has held a key.
type Question struct {
	Daemon string // its id
	Key    string
	Mode   cache.Mode
	Tokens []uint64
	of     []*Lock   // the lock of each token
	at     time.Time // when the answer arrived; zero without one
}

// Asked has locks of one key. Ask finds out since when each has been held.
type Asked struct {
	Key   string
	Mode  cache.Mode // Permit, or any other
	Locks []Lock
}

// Ask sets Held of all these locks as far as their holders' daemons answer. It waits for at most
// AnswerTime, for all of them together. Held is right at the return of Ask.
func Ask(ctx context.Context, all []Asked) {
	by := map[Asker][]*Question{}
	for _, a := range all {
		var askers []Asker
		for i := range a.Locks {
			if x := a.Locks[i].Asker; x != nil && !slices.Contains(askers, x) {
				askers = append(askers, x)
			}
		}
		for _, x := range askers {
			by[x] = append(by[x], Questions(x, a.Key, a.Mode, a.Locks)...)
		}
	}
	var wg sync.WaitGroup
	for x, qs := range by {
		wg.Go(func() { x.Ask(ctx, qs) })
	}
	wg.Wait()
	now := time.Now()
	for _, qs := range by {
		for _, q := range qs {
			q.age(now)
		}
	}
}

// age adds the time since the answer.
func (q *Question) age(now time.Time) {
	for _, l := range q.of {
		if l.Held > 0 {
			l.Held += int64(now.Sub(q.at))
		}
	}
}

// Questions returns a question to each of the daemons that hold these locks of one key, for their
// Asker.
func Questions(by Asker, key string, mode cache.Mode, locks []Lock) (qs []*Question) {
	byDaemon := map[string]*Question{}
	for i := range locks {
		l := &locks[i]
		if l.Daemon == "" || l.Mine || l.Foreign || l.Token == 0 || l.Asker != by {
			continue
		}
		q := byDaemon[l.Daemon]
		if q == nil {
			q = &Question{Daemon: l.Daemon, Key: key, Mode: mode}
			byDaemon[l.Daemon] = q
			qs = append(qs, q)
		}
		if len(q.Tokens) < maxTokens {
			q.Tokens, q.of = append(q.Tokens, l.Token), append(q.of, l)
		}
	}
	return qs
}

// Clone returns the same question with locks of its own. Merge copies its answer to q.
func (q *Question) Clone() *Question {
	c := *q
	c.of = make([]*Lock, len(q.of))
	for i := range c.of {
		c.of[i] = new(Lock)
	}
	return &c
}

// Merge adopts the answer to c, a Clone of q. now is the same for all clones of q.
func (q *Question) Merge(c *Question, now time.Time) {
	if !c.Answered() {
		return
	}
	c.age(now)
	q.at = now
	for i, l := range c.of {
		if l.Held > 0 {
			q.of[i].Held = l.Held
		}
	}
}

// Answered reports whether an answer has arrived, even one that cannot be true.
func (q *Question) Answered() bool { return !q.at.IsZero() }

// Encode returns the text of the question, which has no space before the key. prefix comes before
// the key in the store's own names.
func (q *Question) Encode(prefix string) string {
	b := []byte{'l'}
	if q.Mode == cache.Permit {
		b[0] = 'p'
	}
	for _, t := range q.Tokens {
		b = strconv.AppendUint(append(b, ','), t, 36)
	}
	return string(b) + " " + prefix + q.Key
}

// ParseQuestion reads the text of a question. ok is false for any other text.
func ParseQuestion(text string) (q Question, ok bool) {
	head, key, _ := strings.Cut(text, " ")
	kind, tokens, _ := strings.Cut(head, ",")
	switch kind {
	case "l":
	case "p":
		q.Mode = cache.Permit
	default:
		return Question{}, false
	}
	q.Key = key
	for t := range strings.SplitSeq(tokens, ",") {
		n, err := strconv.ParseUint(t, 36, 64)
		if err != nil || len(q.Tokens) == maxTokens {
			return Question{}, false
		}
		q.Tokens = append(q.Tokens, n)
	}
	return q, q.Key != ""
}

// EncodeAnswer returns the text of an answer: milliseconds, in the order of the question's tokens.
func EncodeAnswer(held []int64) string {
	var b []byte
	for i, ns := range held {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, max(0, ns)/int64(time.Millisecond), 10)
	}
	return string(b)
}

// Learn sets Held of the question's locks from the text of its answer. It leaves Held unknown if
// the text does not fit the question.
func (q *Question) Learn(text string) {
	q.at = time.Now()
	parts := strings.Split(text, ",")
	if len(parts) != len(q.of) {
		return
	}
	for i, p := range parts {
		ms, err := strconv.ParseUint(p, 10, 63)
		if err == nil && ms <= uint64(maxHeld/time.Millisecond) {
			q.of[i].Held = int64(ms) * int64(time.Millisecond)
		}
	}
}

// Mutes remembers the daemons that have not answered, so that they are not asked again for a while.
// A Store guards it.
type Mutes map[string]time.Time

// Add remembers the daemons that have answered none of these questions.
func (m *Mutes) Add(qs []*Question, now time.Time) {
	answered := map[string]bool{}
	for _, q := range qs {
		answered[q.Daemon] = answered[q.Daemon] || q.Answered()
	}
	for id, ok := range answered {
		if ok {
			continue
		}
		if *m == nil || len(*m) > maxMuted {
			*m = Mutes{}
		}
		(*m)[id] = now
	}
}

// Without returns qs without the questions to daemons that have not answered for muteTime.
func (m Mutes) Without(qs []*Question, now time.Time) []*Question {
	return slices.DeleteFunc(slices.Clone(qs), func(q *Question) bool {
		at, muted := m[q.Daemon]
		return muted && now.Sub(at) < muteTime
	})
}

// FirstQuestion returns a number to count questions from. It is random: after a takeover, the
// answer to a question of the predecessor must not be taken for the answer to a question of the
// successor.
func FirstQuestion() uint64 { return rand.Uint64N(1 << 62) }
