package mysql

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
)

// The kinds of requests.
const (
	reqPeek  = 0   // nothing is written
	reqTake  = 'x' // take the lock exclusively
	reqShare = 's' // take it shared
	// reqFree ends the token's lease, shared lease or queue entry.
	reqFree      = 'f'
	reqRenew     = 'n' // renew its lease
	reqRebase    = 'b' // renew it and raise the fence
	reqDowngrade = 'd' // make it shared
	reqSwap      = 'c' // replace the version that was read by the given row
)

// The rules exist in SQL and in Go. The rules in SQL carry out a plain request in one round trip.
// The rules in Go (locks_rules.go) are for requests that find a holder, a queue, or entries that
// have ended. With the rules in Go alone, each request reads the row, decides, and writes the row
// if its version has not changed. On MariaDB 10.11, that took a single caller 1.3 to 1.6 times as
// long. 64 callers took 1.2 to 1.9 times as long, with 1.5 to 1.8 times the client's CPU time.
// TestServerAndRulesAgree compares both sets of rules.

// rule describes how one kind of request changes an existing row. If there is no row, the values of
// the request become the row.
//
// VALUES(last) is the request: its kind, token and number. Except for reqSwap, VALUES(version) is
// the server's time and VALUES(queued) the TTL, in µs. when is the condition for applying the
// request. The other fields are the new values of columns, or "" if a column does not change. They
// are evaluated in the order of the fields, and each sees the new values of those before it.
type rule struct {
	when    string
	readers string
	queue   string
	// ends may be later than the end of the last remaining reader.
	ends   string
	queued string
	owner  string
	fence  string
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
	// All readers of one host share a lease, so decide handles a second token of the host.
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
	reqRenew: {when: holds, readers: "IF(LOCATE({token},readers)=0,readers," + extend + ")",
		ends: "GREATEST(ends," + until + ")"},
	reqRebase: {when: holds, readers: "IF(LOCATE({token},readers)=0,readers," + extend + ")",
		ends: "GREATEST(ends," + until + ")", fence: rise},
	reqDowngrade: {
		when: holds,
		readers: "IF(LOCATE({token},readers)=0,CONCAT({token},':',LPAD(GREATEST(ends," + until +
			"),{ends},'0'),';')," +
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
	// holds is true if the token has a lease that has not ended.
	holds = "owner={token} AND ends>" + now + " OR LOCATE({token},readers)>0 AND " + readerEnds + ">" + now
	// readerEnds is the end of one reader's lease in the text of them all.
	readerEnds = "CAST(SUBSTR(readers,LOCATE({token},readers)+{tokenlen}+1,{ends}) AS SIGNED)"
	// extend renews one reader's lease in the text of them all.
	extend = "INSERT(readers,LOCATE({token},readers)+{tokenlen}+1,{ends},LPAD(GREATEST(" +
		readerEnds + "," + until + "),{ends},'0'))"
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

// changes are the clauses for each set of kinds, which has only what these need. A clause is made
// when it is first used, because few programs use MySQL.
var changes = func() (all [1 << len(kindOrder)]func() string) {
	for k := range all {
		all[k] = sync.OnceValue(kinds(k).change)
	}
	return all
}()

// change returns the clause.
func (k kinds) change() string {
	var b strings.Builder
	// From here on, last = VALUES(last) means that the request is applied, because no other request
	// has its number.
	b.WriteString(" ON DUPLICATE KEY UPDATE last=IF(" + k.each(func(r *rule) string { return r.when },
		"FALSE") + ",VALUES(last),last)")
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

// each returns an expression with the value of(rule) for each kind of request in k. If of returns
// "", the value is rest.
func (k kinds) each(of func(*rule) string, rest string) string {
	var cases []string
	one := "" // the common value of all kinds
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
