package upstream

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// HeldFor returns for each token how long ago this daemon's lease with that token was granted, in
// nanoseconds. It is 0 for a token without a valid lease. The leases are permits of the key's semaphore if
// mode is Permit, else the key's lock. HeldFor does not block.
type HeldFor func(key string, mode cache.Mode, tokens []uint64) []int64

// Answerer is a Registrar that does not record when a lease was granted. Its Holders asks the daemon of
// each holder, which answers through the store from its own boot clock. So the time costs an acquire
// nothing, and no two clocks are compared. Holders waits for answers for at most AnswerTime. A daemon that
// does not answer in time, such as an older version, leaves Lock.Held unknown.
type Answerer interface {
	// Answer makes f answer the questions of other daemons, from any goroutine, until the Store is
	// closed. Without it the Store leaves questions unanswered.
	Answer(f HeldFor)
}

const (
	// AnswerTime is how long Holders waits for the answers of other daemons.
	AnswerTime = 300 * time.Millisecond

	muteTime   = 5 * time.Second // that a daemon is not asked after it has not answered
	muteMost   = 1000            // daemons that are remembered for it
	tokensMost = 64              // in one question

	heldMost = 10 * 365 * 24 * time.Hour // a longer answer is not believed
)

// Question asks one daemon for how long it has held a key.
type Question struct {
	Daemon string // its id
	Key    string // as the daemons write it in the store
	Mode   cache.Mode
	Tokens []uint64
	of     []*Lock // by token
}

// Questions returns a question to each of the daemons that hold these locks of one key.
func Questions(key string, mode cache.Mode, locks []Lock) (qs []*Question) {
	byDaemon := map[string]*Question{}
	for i := range locks {
		l := &locks[i]
		if l.Daemon == "" || l.Mine || l.Foreign || l.Token == 0 {
			continue
		}
		q := byDaemon[l.Daemon]
		if q == nil {
			q = &Question{Daemon: l.Daemon, Key: key, Mode: mode}
			byDaemon[l.Daemon] = q
			qs = append(qs, q)
		}
		if len(q.Tokens) < tokensMost {
			q.Tokens, q.of = append(q.Tokens, l.Token), append(q.of, l)
		}
	}
	return qs
}

// Encode returns the text of the question, which has no space before the key.
func (q *Question) Encode() string {
	b := []byte{'l'}
	if q.Mode == cache.Permit {
		b[0] = 'p'
	}
	for _, t := range q.Tokens {
		b = strconv.AppendUint(append(b, ','), t, 36)
	}
	return string(b) + " " + q.Key
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
		if err != nil || len(q.Tokens) == tokensMost {
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

// Learn sets Held of the question's locks from the text of its answer. It changes nothing if the text does
// not fit the question.
func (q *Question) Learn(text string) {
	parts := strings.Split(text, ",")
	if len(parts) != len(q.of) {
		return
	}
	for i, p := range parts {
		if ms, err := strconv.ParseUint(p, 10, 63); err == nil && ms <= uint64(heldMost/time.Millisecond) {
			q.of[i].Held = int64(ms) * int64(time.Millisecond)
		}
	}
}

// Mutes remembers the daemons that have not answered, so that they are not asked again for a while. A Store
// guards it.
type Mutes map[string]time.Time

// Add remembers that these questions were not answered.
func (m *Mutes) Add(qs []*Question, now time.Time) {
	if *m == nil || len(*m) > muteMost {
		*m = Mutes{}
	}
	for _, q := range qs {
		(*m)[q.Daemon] = now
	}
}

// Without returns qs without the questions to daemons that have not answered for muteTime.
func (m Mutes) Without(qs []*Question, now time.Time) []*Question {
	return slices.DeleteFunc(qs, func(q *Question) bool {
		at, muted := m[q.Daemon]
		return muted && now.Sub(at) < muteTime
	})
}
