package mysql

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

// The kinds of requests.
const (
	reqLook      = 0   // nothing is written
	reqTake      = 'x' // take the lock exclusively
	reqShare     = 's' // take it shared
	reqFree      = 'f' // end whatever the token has there: a lease, a shared lease, a place in the queue
	reqRenew     = 'n' // renew its lease
	reqRebase    = 'b' // renew it and raise the fence
	reqDowngrade = 'd' // make it shared
	reqSwap      = 'c' // put the given row in the place of the version before it, which was read
)

// rule is what one kind of request does to the row that is there already. Where
// there is none the values of the request are the row.
//
// VALUES(last) is the request: its kind, its token and its number. For all but
// reqSwap VALUES(version) is the server's time and VALUES(queued) the TTL, in µs.
// when says whether the request has its way; the others are what a column becomes
// then, "" when it stays. They are carried out in the order in which they stand
// here, each seeing what those before it have done.
type rule struct {
	when    string
	readers string
	queue   string
	ends    string // with readers left it may be later than the last of them ends: who needs to know reads them
	queued  string
	owner   string
	fence   string
}

const (
	now   = "VALUES(version)"
	until = "VALUES(version)+VALUES(queued)"
	rise  = "GREATEST(fence+1,VALUES(fence))"
)

// {token} is the token of the request.
var rules = map[byte]rule{
	reqTake: {
		when:    "fence<{max} AND (owner=VALUES(owner) OR ends<=" + now + " AND queued<=" + now + ")",
		readers: "''",
		queue:   "IF(queued<=" + now + ",'',queue)",
		ends:    "GREATEST(ends," + until + ")",
		queued:  "IF(queued<=" + now + ",0,queued)",
		owner:   "VALUES(owner)",
		fence:   rise,
	},
	// Readers of one host are one, so that a second token of it is for decide.
	reqShare: {
		when: "fence<{max} AND queued<=" + now + " AND (ends<=" + now + " OR owner={nobody}" +
			" AND LENGTH(readers)<{room} AND LOCATE(SUBSTR(VALUES(last),2,{instance}),readers)=0)",
		readers: "IF(ends<=" + now + ",VALUES(readers),CONCAT(readers,VALUES(readers)))",
		queue:   "''",
		ends:    "GREATEST(ends," + until + ")",
		queued:  "0",
		owner:   "{nobody}",
		fence:   rise,
	},
	reqFree: {
		when:    "owner={token} OR LOCATE({token},readers)>0 OR LOCATE({token},queue)>0",
		readers: "IF(LOCATE({token},readers)=0,readers,INSERT(readers,LOCATE({token},readers),{reader},''))",
		queue:   "IF(LOCATE({token},queue)=0,queue,INSERT(queue,LOCATE({token},queue)-1,{place},''))",
		ends:    "IF(owner={token} OR owner={nobody} AND readers='',0,ends)",
		queued:  "IF(queue='',0,queued)",
		owner:   "IF(owner={token},{nobody},owner)",
	},
	reqRenew:  {when: holds, readers: "IF(LOCATE({token},readers)=0,readers," + extend + ")", ends: "GREATEST(ends," + until + ")"},
	reqRebase: {when: holds, readers: "IF(LOCATE({token},readers)=0,readers," + extend + ")", ends: "GREATEST(ends," + until + ")", fence: rise},
	reqDowngrade: {
		when: holds,
		readers: "IF(LOCATE({token},readers)=0,CONCAT({token},':',LPAD(GREATEST(ends," + until + "),{ends},'0'),';')," +
			extend + ")",
		ends:  "GREATEST(ends," + until + ")",
		owner: "{nobody}",
	},
	reqSwap: {
		when:    "version=VALUES(version)-1",
		readers: "VALUES(readers)",
		queue:   "VALUES(queue)",
		ends:    "VALUES(ends)",
		queued:  "VALUES(queued)",
		owner:   "VALUES(owner)",
		fence:   "VALUES(fence)",
	},
}

const (
	holds = "owner={token} OR LOCATE({token},readers)>0"
	// extend renews one reader's lease in the text of them all.
	extend = "INSERT(readers,LOCATE({token},readers)+{tokenlen}+1,{ends},LPAD(GREATEST(" +
		"CAST(SUBSTR(readers,LOCATE({token},readers)+{tokenlen}+1,{ends}) AS SIGNED)," + until + "),{ends},'0'))"
)

var words = strings.NewReplacer(
	"{max}", strconv.FormatUint(cache.MaxBase, 10),
	"{room}", strconv.Itoa(maxEntries*readerLen),
	"{instance}", strconv.Itoa(instanceLen),
	"{token}", "SUBSTR(VALUES(last),2,"+strconv.Itoa(tokenLen)+")",
	"{tokenlen}", strconv.Itoa(tokenLen),
	"{nobody}", "'"+nobody+"'",
	"{reader}", strconv.Itoa(readerLen),
	"{place}", strconv.Itoa(placeLen),
	"{ends}", strconv.Itoa(endsLen),
)

// kinds is a set of kinds of requests, as bits in the order of kindOrder.
type kinds uint8

const kindOrder = "xsfnbdc"

func (k *kinds) add(kind byte) { *k |= 1 << strings.IndexByte(kindOrder, kind) }

// changes are the clauses for each set of kinds, which has only what these need.
var changes = func() (all [1 << len(kindOrder)]string) {
	for k := range all {
		all[k] = kinds(k).change()
	}
	return all
}()

// change makes the clause.
func (k kinds) change() string {
	var b strings.Builder
	// From here on last = VALUES(last) says that the request has its way: no other
	// has its number.
	b.WriteString(" ON DUPLICATE KEY UPDATE last=IF(" + k.each(func(r *rule) string { return r.when }, "FALSE") + ",VALUES(last),last)")
	for _, c := range []struct {
		name string
		of   func(r *rule) string
	}{
		{"readers", func(r *rule) string { return r.readers }},
		{"queue", func(r *rule) string { return r.queue }},
		{"ends", func(r *rule) string { return r.ends }},
		{"queued", func(r *rule) string { return r.queued }},
		{"owner", func(r *rule) string { return r.owner }},
		{"fence", func(r *rule) string { return r.fence }},
	} {
		if to := k.each(c.of, c.name); to != c.name {
			fmt.Fprintf(&b, ",%s=IF(last=VALUES(last),%s,%s)", c.name, to, c.name)
		}
	}
	b.WriteString(",version=IF(last=VALUES(last),version+1,version)")
	return words.Replace(b.String())
}

// each is the expression that is of(rule) for a request of each kind in k, and
// rest where that is "".
func (k kinds) each(of func(*rule) string, rest string) string {
	var cases []string
	one := "" // what all kinds have in common
	for i := range len(kindOrder) {
		if k&(1<<i) == 0 {
			continue
		}
		r := rules[kindOrder[i]]
		to := of(&r)
		if to == "" {
			to = rest
		}
		if len(cases) == 0 {
			one = to
		} else if to != one {
			one = ""
		}
		cases = append(cases, fmt.Sprintf(" WHEN '%c' THEN %s", kindOrder[i], to))
	}
	switch {
	case len(cases) == 0:
		return rest
	case one != "":
		return one
	}
	return "CASE LEFT(VALUES(last),1)" + strings.Join(cases, "") + " END"
}
