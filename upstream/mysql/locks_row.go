package mysql

import (
	"errors"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

// nobody is the owner of a lock without an owner. It has the length of a token, so that plain
// requests change no lengths and the server can update the row in place.
const nobody = "------------------------------------"

// shortLivedEntries is the maximum number of readers, and of waiting hosts, of a row for which the
// write of the row returns them.
const shortLivedEntries = 4

// maxEntries is the maximum number of readers, and of waiting hosts, of one lock, because they are
// in one row.
const maxEntries = 500

var errRow = errors.New("the row is malformed")

// row is a lock as its row describes it.
type row struct {
	version int64   // of the fields below
	last    string  // the request that changed the row last
	fence   int64   // the highest base granted
	owner   string  // the exclusive holder's token; "" without one
	ends    int64   // the end of all leases, in µs of UTC; 0 without a lease
	queued  int64   // the end of all queue entries
	readers []entry // in any order; none while there is an owner
	queue   []entry // in order of arrival
	long    bool    // the queue was not read: it has more than shortLivedEntries
}

// entry is a shared lease or an entry of the queue.
type entry struct {
	mode  cache.Mode
	token string
	ends  int64 // µs of UTC
}

// parseReaders reads a sequence of token:ends; texts.
func parseReaders(b []byte) ([]entry, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b)%readerLen != 0 {
		return nil, errRow
	}
	gs := make([]entry, 0, len(b)/readerLen)
	for ; len(b) > 0; b = b[readerLen:] {
		g, err := parseEntry(b[:readerLen])
		if err != nil {
			return nil, err
		}
		g.mode = cache.Shared
		gs = append(gs, g)
	}
	return gs, nil
}

// parseQueue reads a sequence of x or s and token:ends; texts.
func parseQueue(b []byte) ([]entry, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b)%placeLen != 0 {
		return nil, errRow
	}
	gs := make([]entry, 0, len(b)/placeLen)
	for ; len(b) > 0; b = b[placeLen:] {
		g, err := parseEntry(b[1:placeLen])
		switch {
		case err != nil:
			return nil, err
		case b[0] == 's':
			g.mode = cache.Shared
		case b[0] != 'x':
			return nil, errRow
		}
		gs = append(gs, g)
	}
	return gs, nil
}

func parseEntry(b []byte) (entry, error) {
	ends, err := strconv.ParseUint(string(b[tokenLen+1:readerLen-1]), 10, 63)
	if err != nil || b[tokenLen] != ':' || b[readerLen-1] != ';' {
		return entry{}, errRow
	}
	return entry{token: string(b[:tokenLen]), ends: int64(ends)}, nil
}

func appendEntry(b []byte, g entry) []byte {
	b = append(append(b, g.token...), ':')
	b = appendPadded(b, uint64(g.ends), 10, endsLen)
	return append(b, ';')
}

func formatReaders(gs []entry) []byte {
	var b []byte
	for _, g := range gs {
		b = appendEntry(b, g)
	}
	return b
}

func formatQueue(gs []entry) []byte {
	var b []byte
	for _, g := range gs {
		if g.mode == cache.Shared {
			b = append(b, 's')
		} else {
			b = append(b, 'x')
		}
		b = appendEntry(b, g)
	}
	return b
}

func appendPadded(b []byte, n uint64, base, width int) []byte {
	var digits [64]byte
	d := strconv.AppendUint(digits[:0], n, base)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}

// appendToken appends instance.number.
func appendToken(b []byte, instance string, n uint64) []byte {
	return appendPadded(append(append(b, instance...), '.'), n, 36, numberLen)
}

// sameInstance reports whether two tokens have the same instance id.
func sameInstance(a, b string) bool {
	return len(a) == tokenLen && len(b) == tokenLen && a[:instanceLen] == b[:instanceLen]
}

// live returns the row without the entries that have ended at now.
func (r *row) live(now int64) row {
	l := *r
	if r.ends <= now {
		l.owner, l.ends, l.readers = "", 0, nil
	} else if r.owner == "" {
		l.readers = alive(r.readers, now)
		l.ends = latest(l.readers)
	}
	l.queue = nil
	if r.queued > now {
		l.queue = alive(r.queue, now)
	}
	l.queued = latest(l.queue)
	return l
}

func alive(gs []entry, now int64) []entry {
	var out []entry
	for _, g := range gs {
		if g.ends > now {
			out = append(out, g)
		}
	}
	return out
}

func latest(gs []entry) (ends int64) {
	for _, g := range gs {
		ends = max(ends, g.ends)
	}
	return ends
}

func find(gs []entry, token string) int {
	for i := range gs {
		if gs[i].token == token {
			return i
		}
	}
	return -1
}

// holds reports whether token has a lease in the row.
func (r *row) holds(token string) bool {
	return r.owner == token || r.owner == "" && r.ends != 0 && find(r.readers, token) >= 0
}

// has reports whether the row contains token, as a lease or in the queue.
func (r *row) has(token string) bool {
	return r.owner == token || find(r.readers, token) >= 0 || find(r.queue, token) >= 0
}

// contended reports whether a host other than token's waits for the lock at now.
func (r *row) contended(token string, now int64) bool {
	if r.queued <= now {
		return false
	}
	if r.long {
		return true
	}
	for _, g := range r.queue {
		if g.ends > now && !sameInstance(g.token, token) {
			return true
		}
	}
	return false
}

// held returns the mode in which the lock is held at now, and for how many more nanoseconds; 0 if
// it is free.
func (r *row) held(now int64) (cache.Mode, int64) {
	l := r.live(now)
	switch {
	case l.owner != "":
		return cache.Exclusive, (l.ends - now) * 1000
	case len(l.readers) > 0:
		return cache.Shared, (l.ends - now) * 1000
	}
	return cache.Exclusive, 0
}

// holder names the holders of the lock, for people.
func (r *row) holder() string {
	if r.owner != "" {
		return instanceOf(r.owner)
	}
	const limit = 3
	var names []string
	for i, g := range r.readers {
		if i == limit {
			names = append(names, "and "+strconv.Itoa(len(r.readers)-limit)+" more")
			break
		}
		names = append(names, instanceOf(g.token))
	}
	return strings.Join(names, ", ")
}

// instanceOf returns the instance id of a token, without the number that would prove the lease.
func instanceOf(token string) string {
	instance, _, _ := strings.Cut(token, ".")
	return instance
}
