package mysql

import (
	"strconv"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// returning ends a write that returns the rows it leaves.
var returning = " RETURNING name,version,last,fence,owner,ends,queued," +
	"IF(LENGTH(readers)<=" + strconv.Itoa(shortLivedEntries*readerLen) + ",readers,NULL)," +
	"IF(LENGTH(queue)<=" + strconv.Itoa(shortLivedEntries*placeLen) + ",queue,NULL)"

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
		return reqPeek
	}
	if op.Mode == cache.Shared {
		return reqShare
	}
	return reqTake
}

// names adds (name,…).
func (t *text) names(items []*item) { addList(t, items, func(it *item) { t.hex(it.name) }) }

// rows adds a query for the rows of items.
func (t *text) rows(table string, items []*item) {
	t.add("SELECT " + columns + " FROM `" + table + "` FORCE INDEX (PRIMARY) WHERE name IN ")
	t.names(items)
}

// times adds the statement that sets the variables of the write. @now is the time, @until is the
// end of a lease with the returned TTL, and @base is the lower bound of new bases.
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
	t.add("SET @now=" + clock)
	if len(items) > 0 { // a SET sees the variables as they were before it, so @now has no value yet
		t.add(",@until=" + clock + "+").num(ttl).add(",@base=GREATEST(" + clock + ",").
			num(floor + 1).add(")")
	}
	t.add(";")
	return ttl
}

// write adds the one statement that changes the rows of items. It is short, because parsing it is a
// third of the server's work.
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
		t.add("(").hex(it.name).add(",'").add(it.last).add("',")
		if it.kind == reqSwap {
			t.swap(it)
		} else {
			t.values(it, int64(i), it.ask.ttl == ttl)
		}
		t.add(")")
	}
	t.add(changes[k]())
}

// values adds the values of a request. apart makes the bases of one batch distinct. usual means
// that its lease ends at @until. If the lock has no row yet, a release or renewal makes the row of
// a free lock.
func (t *text) values(it *item, apart int64, usual bool) {
	t.add("@now,")
	switch it.kind {
	case reqTake, reqShare, reqRebase:
		t.add("@base+").num(apart)
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
	t.add(",").num(it.ask.ttl)
	if it.kind != reqShare {
		t.add(",'',''")
		return
	}
	t.add(",CONCAT('" + it.ask.token + ":',LPAD(@now+").num(it.ask.ttl).
		add("," + strconv.Itoa(endsLen) + ",'0'),';'),''")
}

func (t *text) end(it *item, usual bool) {
	if usual {
		t.add("@until")
		return
	}
	t.add("@now+").num(it.ask.ttl)
}

// swap adds the new state of the row.
func (t *text) swap(it *item) {
	r := &it.decision.next
	owner := r.owner
	if owner == "" {
		owner = nobody
	}
	t.num(r.version + 1).add(",").num(r.fence).add(",").hex(owner).add(",").num(r.ends).add(",").
		num(r.queued).add(",").hex(string(formatReaders(r.readers))).add(",").
		hex(string(formatQueue(r.queue)))
}
