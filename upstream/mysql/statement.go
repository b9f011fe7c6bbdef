package mysql

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// The lengths of the columns, in bytes.
const (
	maxKey    = 512
	maxPrefix = 64
	nameLen   = maxKey + maxPrefix
)

// clock is the server's time in µs since 1970, of UTC whatever zone the server,
// the session and the season have. It is the time at which its statement began.
const clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"

//go:embed table.sql
var tableSQL string

const columns = "name,version,last,fence,owner,ends,queued,readers,queue"

// returning ends a write that returns the rows it leaves.
var returning = " RETURNING name,version,last,fence,owner,ends,queued," +
	"IF(LENGTH(readers)<=" + strconv.Itoa(shortLivedEntries*readerLen) + ",readers,NULL)," +
	"IF(LENGTH(queue)<=" + strconv.Itoa(shortLivedEntries*placeLen) + ",queue,NULL)"

// createTable is the statement that makes a table of that name.
func createTable(name string) string {
	return strings.TrimSpace(strings.NewReplacer("{table}", "`"+name+"`", "{name}", strconv.Itoa(nameLen),
		"{token}", strconv.Itoa(tokenLen), "{last}", strconv.Itoa(lastLen)).Replace(tableSQL))
}

func kindOf(op *upstream.Op) byte {
	switch op.Kind {
	case cache.OpRelease, cache.OpWithdraw:
		return reqFree
	case cache.OpDowngrade:
		return reqDowngrade
	case cache.OpRenew:
		if op.Rebase {
			return reqRebase
		}
		return reqRenew
	case cache.OpPeek:
		return reqLook
	}
	if op.Mode == cache.Shared {
		return reqShare
	}
	return reqTake
}

// text is a packet of statements in the making. Whatever comes from outside goes
// into it as hexadecimal literals or as numbers.
type text []byte

func (t *text) add(s string) { *t = append(*t, s...) }

func (t *text) num(n int64) { *t = strconv.AppendInt(*t, n, 10) }

func (t *text) hex(s string) {
	const digits = "0123456789abcdef"
	b := append(*t, 'x', '\'')
	for i := range len(s) {
		b = append(b, digits[s[i]>>4], digits[s[i]&15])
	}
	*t = append(b, '\'')
}

// names adds (name,…).
func (t *text) names(items []*item) {
	sep := byte('(')
	for _, it := range items {
		*t = append(*t, sep)
		t.hex(it.name)
		sep = ','
	}
	*t = append(*t, ')')
}

// rows adds a query for the rows of items.
func (t *text) rows(table string, items []*item) {
	t.add("SELECT " + columns + " FROM `" + table + "` FORCE INDEX (PRIMARY) WHERE name IN ")
	t.names(items)
}

// times adds the statement that sets what the write reckons with: @n is the time,
// @e the end of a lease of the TTL that is returned, and @f the least new base.
func (t *text) times(items []*item) (ttl int64) {
	var floor int64
	for _, it := range items {
		floor = max(floor, it.ask.floor)
		if ttl = it.ask.ttl; it.kind == reqTake {
			break
		}
	}
	for _, it := range items {
		floor = max(floor, it.ask.floor)
	}
	t.add("SET @n=" + clock)
	if len(items) > 0 { // a SET sees the variables as they were before it, so not by @n
		t.add(",@e=" + clock + "+")
		t.num(ttl)
		t.add(",@f=GREATEST(" + clock + ",")
		t.num(floor + 1)
		t.add(")")
	}
	t.add(";")
	return ttl
}

// write adds the one statement that changes the rows of items. It has as little
// text for each as goes: at the server, reading it is a third of the work.
func (t *text) write(table string, items []*item, ttl int64) {
	var k kinds
	for _, it := range items {
		k.add(it.kind)
	}
	t.add("INSERT INTO `" + table + "` (name,last,version,fence,owner,ends,queued,readers,queue) VALUES ")
	for i, it := range items {
		if i > 0 {
			t.add(",")
		}
		t.add("(")
		t.hex(it.name)
		t.add(",'")
		t.add(it.last)
		t.add("',")
		if it.kind == reqSwap {
			t.swap(it)
		} else {
			t.values(it, int64(i), it.ask.ttl == ttl)
		}
		t.add(")")
	}
	t.add(changes[k])
}

// values adds a request's values. apart keeps the bases of one batch apart from
// each other; usual says that @e is its end. Where the lock has no row yet, a
// release and a renewal leave one of a lock that is free.
func (t *text) values(it *item, apart int64, usual bool) {
	t.add("@n,")
	switch it.kind {
	case reqTake, reqShare, reqRebase:
		t.add("@f+")
		t.num(apart)
	default:
		t.add("0")
	}
	switch it.kind {
	case reqTake:
		t.add(",'" + it.ask.token + "',")
		t.end(it, usual)
	case reqShare:
		t.add(",'" + nobody + "',")
		t.end(it, usual)
	default:
		t.add(",'" + nobody + "',0")
	}
	t.add(",")
	t.num(it.ask.ttl)
	if it.kind != reqShare {
		t.add(",'',''")
		return
	}
	t.add(",CONCAT('" + it.ask.token + ":',LPAD(@n+")
	t.num(it.ask.ttl)
	t.add("," + strconv.Itoa(endsLen) + ",'0'),';'),''")
}

func (t *text) end(it *item, usual bool) {
	if usual {
		t.add("@e")
		return
	}
	t.add("@n+")
	t.num(it.ask.ttl)
}

// swap adds what the row is to be.
func (t *text) swap(it *item) {
	r := &it.verdict.next
	owner := r.owner
	if owner == "" {
		owner = nobody
	}
	t.num(r.version + 1)
	t.add(",")
	t.num(r.fence)
	t.add(",")
	t.hex(owner)
	t.add(",")
	t.num(r.ends)
	t.add(",")
	t.num(r.queued)
	t.add(",")
	t.hex(string(formatReaders(r.readers)))
	t.add(",")
	t.hex(string(formatQueue(r.queue)))
}
