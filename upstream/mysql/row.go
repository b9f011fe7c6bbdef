package mysql

import (
	"errors"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

// The lengths of what is in a row, in bytes. A token is instance.number, the
// number in base 36 filled up with zeros, so that tokens are found by their text
// alone: none is a part of another, nor of anything else in a row.
const (
	instanceLen = 22
	numberLen   = 13 // of the largest uint64
	tokenLen    = instanceLen + 1 + numberLen
	endsLen     = 16 // µs since 1970, until the year 2286
	readerLen   = tokenLen + 1 + endsLen + 1
	placeLen    = 1 + readerLen
	lastLen     = 1 + tokenLen + 1 + numberLen
)

// nobody is the owner of a lock without one. It is as long as a token, as all is
// that plain requests change: the server can write that in its place.
const nobody = "------------------------------------"

// shortLivedEntries is the maximum number of readers, and of waiting hosts, of a row for which the write of the
// row returns them.
const shortLivedEntries = 4

// maxEntries is the maximum number of readers, and of waiting hosts, of one lock, because they are in one row.
const maxEntries = 500

var errRow = errors.New("the row is not well-formed")

// row is a lock as its row says.
type row struct {
	version int64   // of what is below
	last    string  // the request that changed the row last
	fence   int64   // the highest base given out
	owner   string  // the exclusive holder's token; "" without one
	ends    int64   // no lease lasts longer, in µs of UTC; 0 when there is none
	queued  int64   // no place in the queue lasts longer
	readers []entry // in any order; none while there is an owner
	queue   []entry // in the order in which they came
	long    bool    // the queue has not been read: there are more than shortLivedEntries in it
}

// entry is a shared lease or a place in the queue.
type entry struct {
	mode  cache.Mode
	token string
	ends  int64 // µs of UTC
}

// parseReaders reads token:ends; again and again.
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

// parseQueue reads x or s and token:ends; again and again.
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

// sameInstance says whether a token is of the instance that another one is of.
func sameInstance(a, b string) bool {
	return len(a) == tokenLen && len(b) == tokenLen && a[:instanceLen] == b[:instanceLen]
}

// live is the row as it is at now, without what has ended.
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

// holds says whether token has a lease in the row.
func (r *row) holds(token string) bool {
	return r.owner == token || r.owner == "" && r.ends != 0 && find(r.readers, token) >= 0
}

// has says whether token stands in the row in whatever shape.
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

// held says how the lock is held at now and for how many nanoseconds more; 0 when
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

// holder names who holds the lock, for people.
func (r *row) holder() string {
	if r.owner != "" {
		return instanceOf(r.owner)
	}
	const most = 3
	var names []string
	for i, g := range r.readers {
		if i == most {
			names = append(names, "and "+strconv.Itoa(len(r.readers)-most)+" more")
			break
		}
		names = append(names, instanceOf(g.token))
	}
	return strings.Join(names, ", ")
}

// instanceOf is whose a token is, without the number that would prove the lease.
func instanceOf(token string) string {
	instance, _, _ := strings.Cut(token, ".")
	return instance
}
