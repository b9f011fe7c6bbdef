package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// ViewQuery bounds and orders a view.
type ViewQuery struct {
	Prefix string `json:"prefix"`           // only keys with this prefix
	Search string `json:"search,omitempty"` // only keys that contain this
	Key    string `json:"key,omitempty"`    // only this key
	Sort   string `json:"sort"`             // one of ViewSorts; age when empty
	Desc   bool   `json:"desc"`             // in descending order
	Limit  int    `json:"limit"`            // rows of each list: 50 when 0, at most MaxViewRows
}

// ViewSorts are the orders of a view. "age" has the oldest first. "key" sorts by key, and sessions
// by client. "left" has the least time left first: of holds to their end, of waiters to their
// timeout; it has the sessions with the most holds first. "waiters" has the holds with the most
// waiters first, the waiters with the most waiters before them, and the sessions with the most
// waits. "trouble" has holds first whose renewal is late or that are degraded or closed by force,
// then those with waiters; it examines only the oldest holds if there are many.
var ViewSorts = []string{"age", "key", "left", "waiters", ViewTrouble}

// ViewTrouble is the order that has problems first.
const ViewTrouble = "trouble"

// MaxViewRows bounds each list of a view.
const MaxViewRows = 1000

// DefaultViewRows is the length of each list of a view, unless the query says otherwise.
const DefaultViewRows = 50

// errQuery is the error of a malformed query.
var errQuery = errors.New("bad query")

// ParseViewQuery parses the form that Values returns. It ignores unknown parameters.
func ParseViewQuery(v url.Values) (ViewQuery, error) {
	q := ViewQuery{Prefix: v.Get("prefix"), Search: v.Get("search"), Key: v.Get("key"),
		Sort: v.Get("sort")}
	var err error
	if s := v.Get("desc"); s != "" {
		if q.Desc, err = strconv.ParseBool(s); err != nil {
			return q, fmt.Errorf("%w: desc is true or false", errQuery)
		}
	}
	if s := v.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil {
			return q, fmt.Errorf("%w: limit is a number", errQuery)
		}
	}
	return q, q.SetDefaults()
}

// Values returns q as the query of a URL, without fields that have their default.
func (q ViewQuery) Values() url.Values {
	v := make(url.Values)
	for name, value := range map[string]string{"prefix": q.Prefix, "search": q.Search,
		"key": q.Key} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Sort != "" && q.Sort != ViewSorts[0] {
		v.Set("sort", q.Sort)
	}
	if q.Desc {
		v.Set("desc", "true")
	}
	if q.Limit != 0 && q.Limit != DefaultViewRows {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// SetDefaults sets the defaults of fields that are not set, and checks the query.
func (q *ViewQuery) SetDefaults() error {
	q.Sort = cmp.Or(q.Sort, ViewSorts[0])
	q.Limit = cmp.Or(q.Limit, DefaultViewRows)
	if q.Limit < 1 || q.Limit > MaxViewRows {
		return fmt.Errorf("%w: limit is from 1 to %d", errQuery, MaxViewRows)
	}
	if q.Key != "" && q.Prefix != "" {
		return fmt.Errorf("%w: key and prefix exclude each other", errQuery)
	}
	if orders[q.Sort] == nil {
		return fmt.Errorf("%w: sort is one of %v", errQuery, ViewSorts)
	}
	return nil
}

// View shows the present state of a daemon. Its size is bounded. Durations are in milliseconds, and
// -1 when not known. Numbers of 63 and 64 bits are strings in JSON.
type View struct {
	At       time.Time     `json:"at"`
	Version  string        `json:"version"`
	PID      int           `json:"pid"`
	Up       int64         `json:"up_ms"`
	NotReady string        `json:"not_ready,omitempty"` // why no new locks can be acquired
	Query    ViewQuery     `json:"query"`
	Stores   []ViewStore   `json:"stores"`
	Totals   ViewTotals    `json:"totals"`
	Holds    []ViewHold    `json:"holds"`
	Waiters  []ViewWaiter  `json:"waiters"`
	Sessions []ViewSession `json:"sessions"`
	Lost     []ViewLost    `json:"lost"`    // newest first; of the query's key, if it has one
	History  []ViewPoint   `json:"history"` // the oldest first
	More     ViewMore      `json:"more"`
	// Namespaces are those since the daemon started, in the order in which they were configured.
	Namespaces []ViewNamespace `json:"namespaces"`
	// Holder is one holder of the query's key, from the store's list; null when it is not known.
	Holder *protocol.Holder `json:"holder,omitempty"`
}

// ViewNamespace shows the state of the keys with a prefix.
type ViewNamespace struct {
	Prefix  string `json:"prefix"` // empty for the namespace of all other keys
	Store   string `json:"store"`  // the store of its keys
	Held    int64  `json:"held"`
	Waiting int64  `json:"waiting"`
	Lost    uint64 `json:"lost"`
}

// ViewMore says which lists have more rows than the view shows.
type ViewMore struct {
	Holds    bool `json:"holds"`
	Waiters  bool `json:"waiters"`
	Sessions bool `json:"sessions"`
	// Unseen is true if there were too many holds or waiters to visit all of them. Then the lists
	// have only the oldest ones, or the newest.
	Unseen bool `json:"unseen"`
}

// ViewStore shows the state of a store.
type ViewStore struct {
	Name        string `json:"name"`
	Kind        string `json:"kind"`
	Safety      string `json:"safety"`
	Up          bool   `json:"up"`
	Error       string `json:"error,omitempty"` // why it is down
	Connections int    `json:"connections"`     // -1 when not known
	Leases      int64  `json:"leases"`
	Moved       int64  `json:"moved"`   // leases, held or not, whose keys are at another store now
	Renewed     uint64 `json:"renewed"` // renewals since the daemon started, by their outcome
	NotHeld     uint64 `json:"not_held"`
	Unanswered  uint64 `json:"unanswered"`
	Slack       int64  `json:"slack_p50_ms"` // the median of what leases had left when renewed
	Late        int64  `json:"late_ms"`      // how late the most urgent renewal is
	Flying      int    `json:"in_flight"`    // batches in flight
	Queued      int    `json:"queued"`       // operations that wait for the next batch
}

// ViewTotals has present numbers, and counters since the daemon started, from which a reader can
// compute rates.
type ViewTotals struct {
	Held      int64  `json:"held"`
	Waiting   int64  `json:"waiting"`
	Sessions  int    `json:"sessions"`
	Acquires  uint64 `json:"acquires"` // ended, with any outcome
	Granted   uint64 `json:"granted"`  // of those, without re-entries
	Lost      uint64 `json:"lost"`
	Handoffs  uint64 `json:"handoffs"`
	Contended uint64 `json:"contended"`
	Expired   uint64 `json:"expired"`   // leases
	Oldest    int64  `json:"oldest_ms"` // how long the oldest hold has been held; 0 without any
}

// ViewWho describes the client of a row.
type ViewWho struct {
	Session uint64 `json:"session"` // 0 for a detached hold
	PID     int    `json:"pid"`     // -1 when not known
	UID     int    `json:"uid"`
	Client  string `json:"client"` // the name that it states
	// Detached means that no session has the hold, which keeps the key closed for its Left.
	Detached bool `json:"detached,omitempty"`
}

// ViewHold is one hold.
type ViewHold struct {
	Key   string `json:"key"`
	Mode  string `json:"mode"`
	Owner uint64 `json:"owner,string"`
	Fence uint64 `json:"fence,string"` // 0 when it is degraded
	Class string `json:"class,omitempty"`
	ViewWho
	Held     int64 `json:"held_ms"`
	Left     int64 `json:"left_ms"` // until it ends unless it is renewed
	TTL      int64 `json:"ttl_ms"`
	Waiters  int32 `json:"waiters"`            // for the key, on this host
	Degraded bool  `json:"degraded,omitempty"` // granted by this host alone
	Fixed    bool  `json:"fixed,omitempty"`    // it ends by itself
	// Forced means that it was unlocked by force: it is lost, and keeps the key closed for Left.
	Forced bool `json:"forced,omitempty"`
}

// ViewWaiter is one waiter.
type ViewWaiter struct {
	Key   string `json:"key"`
	Mode  string `json:"mode"`
	Owner uint64 `json:"owner,string"`
	ViewWho
	Waited int64    `json:"waited_ms"`
	Left   int64    `json:"left_ms"` // until its timeout; -1 without one
	Place  int32    `json:"place"`   // in the queue of this host, from 1
	Behind *ViewWho `json:"behind"`  // a holder of the lock on this host; null without one
	// Holder is one holder on another host, from the store's list; null when it is not known.
	Holder *protocol.Holder `json:"holder,omitempty"`
}

// ViewSession is one client.
type ViewSession struct {
	ViewWho
	Since   int64 `json:"since_ms"` // how long it has been connected
	Holds   int64 `json:"holds"`
	Waiters int64 `json:"waiters"`
	Heard   int64 `json:"heard_ms"` // since its last frame
	Watched bool  `json:"watched"`  // the end of its process is noticed
}

// ViewLost is a hold that was lost.
type ViewLost struct {
	At    time.Time `json:"at"`
	Key   string    `json:"key"`
	Mode  string    `json:"mode"`
	Owner uint64    `json:"owner,string"`
	Fence uint64    `json:"fence,string"`
	ViewWho
	Reason string `json:"reason"`
	Held   int64  `json:"held_ms"`
}

// ViewPoint has the numbers at one time, and the rates of the seconds before it.
type ViewPoint struct {
	At       time.Time `json:"at"`
	Held     int64     `json:"held"`
	Waiting  int64     `json:"waiting"`
	Sessions int       `json:"sessions"`
	Acquires float64   `json:"acquires_per_second"`
	Lost     float64   `json:"lost_per_second"`
	Slack    int64     `json:"slack_p50_ms"` // of the renewals in between; -1 without any
}
