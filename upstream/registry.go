package upstream

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/locksidecar/locksidecar/cache"
)

// Registration is a daemon's entry in the store, by which other hosts name it. It has no secrets.
type Registration struct {
	Host    string `json:"host"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
	Started int64  `json:"started"` // milliseconds since 1970, by the clock of its host
}

// Registrar is a Store in which daemons register themselves, so that every host can name the holder
// of a lock. An entry belongs to a daemon, not to a lock. No op depends on it.
type Registrar interface {
	// Register writes the entry of this Store's daemon, or replaces it, in one small write. The
	// entry ends after ttl or with the store session, whichever the store uses for its leases.
	Register(ctx context.Context, r Registration, ttl time.Duration) error

	// Unregister removes the entry. It is no error if there is none.
	Unregister(ctx context.Context) error

	// Registered returns the entries with these ids. The result omits daemons without an entry:
	// older versions, and daemons that could not write one.
	Registered(ctx context.Context, ids []string) (map[string]Registration, error)

	// Holders returns at most limit holders of one key: of its semaphore if mode is Permit, else of
	// its lock. Each reader and each permit is a separate Lock. The number of round trips does not
	// depend on the number of locks in the store.
	Holders(ctx context.Context, key string, mode cache.Mode, limit int) ([]Lock, error)
}

// The bounds of an entry, in bytes. Longer host names and versions are cut. A longer entry is
// ignored, as no daemon writes one.
const (
	maxHost    = 255
	maxVersion = 64
	maxEntry   = 4096
)

// Encode returns the text of the entry.
func (r Registration) Encode() string {
	r.clean()
	b, _ := json.Marshal(r) // never fails
	return string(b)
}

// ParseRegistration reads the text of an entry, which may come from anybody who can write to the
// store: the result has no control characters and is bounded in size. ok is false for any other
// text.
func ParseRegistration(text string) (r Registration, ok bool) {
	if len(text) > maxEntry || json.Unmarshal([]byte(text), &r) != nil {
		return Registration{}, false
	}
	r.clean()
	return r, r.Host != ""
}

func (r *Registration) clean() {
	r.Host, r.Version = plain(r.Host, maxHost), plain(r.Version, maxVersion)
	r.PID, r.Started = max(0, r.PID), max(0, r.Started) // clients reject negative numbers
}

// plain returns s without control characters, which a terminal would obey, cut to limit bytes.
func plain(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return unicode.ReplacementChar
		}
		return c
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// Daemons returns the ids of the daemons that hold these locks, sorted and without duplicates.
func Daemons(locks []Lock) []string {
	var ids []string
	for i := range locks {
		if id := locks[i].Daemon; id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
