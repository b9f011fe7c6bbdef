package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"
)

// layout is a daemon's configuration, in the form that the operator of a storm changes.
type layout struct {
	fixed  []string          // fields that need a restart, and fields that never change
	stores map[string]string // URLs by name
	rooms  map[string]room   // namespaces by prefix
	rest   []string          // more lines at the top
}

// room is one namespace.
type room struct {
	store, both string // empty for the store in upstream, and for no second store
	epoch       uint64
	more        []string // more fields
}

func (l *layout) clone() *layout {
	return &layout{l.fixed, maps.Clone(l.stores), maps.Clone(l.rooms), slices.Clone(l.rest)}
}

// yaml returns the text of the configuration file.
func (l *layout) yaml() string {
	var b strings.Builder
	for _, line := range slices.Concat(l.fixed, l.rest) {
		fmt.Fprintln(&b, line)
	}
	b.WriteString("stores:\n")
	for _, name := range slices.Sorted(maps.Keys(l.stores)) {
		fmt.Fprintf(&b, "  %s: {upstream: %q}\n", name, l.stores[name])
	}
	b.WriteString("namespaces:\n")
	for _, prefix := range slices.Sorted(maps.Keys(l.rooms)) {
		r := l.rooms[prefix]
		fields := slices.Clone(r.more)
		if r.store != "" {
			fields = append(fields, "store: "+r.store)
		}
		if r.both != "" {
			fields = append(fields, "both: "+r.both)
		}
		if r.epoch > 0 {
			fields = append(fields, fmt.Sprint("fence_epoch: ", r.epoch))
		}
		fmt.Fprintf(&b, "  %q: {%s}\n", prefix, strings.Join(fields, ", "))
	}
	return b.String()
}

// fewHolds is a limit that the workers alone may reach, so that a command gets no lock.
const fewHolds = "max_holds: 4"

// vary gives l settings that no client may notice, except limits and bounds in a namespace of its
// own. It may add namespaces in the stores in names.
func (l *layout) vary(rnd *rand.Rand, names []string) {
	l.rest = []string{fmt.Sprint("max_handoffs: ", 1+rnd.IntN(16)),
		fmt.Sprintf("max_handoff_time: %dms", 10+rnd.IntN(90)),
		fmt.Sprintf("drain: %dms", 200+rnd.IntN(800))}
	if rnd.IntN(2) == 0 {
		l.rest = append(l.rest, fmt.Sprintf("log: {level: %s, audit: %v, keys: %s}",
			[]string{"info", "debug"}[rnd.IntN(2)], rnd.IntN(2) == 0,
			[]string{"plain", "hashed"}[rnd.IntN(2)]))
	}
	if rnd.IntN(3) == 0 {
		l.rest = append(l.rest, fmt.Sprintf("max_wait: %ds", 3+rnd.IntN(5)))
	}
	if rnd.IntN(3) == 0 {
		l.rest = append(l.rest, fmt.Sprintf("classes: {a%d: %q, b: [%q, \"y:\"]}",
			rnd.IntN(3), "x:", "p"))
	}
	limits := fmt.Sprintf("max_user_conns: %d, out_buffer: %d", userConns, 1<<(20+rnd.IntN(4)))
	if rnd.IntN(2) == 0 {
		limits += fmt.Sprintf(", max_user_rate: %d, max_holds: %d", 5000+rnd.IntN(5000),
			100+rnd.IntN(1000))
	}
	l.rest = append(l.rest, "limits: {"+limits+"}")
	for prefix, r := range l.rooms {
		if strings.HasPrefix(prefix, "n") {
			delete(l.rooms, prefix)
			continue
		}
		r.more = slices.DeleteFunc(slices.Clone(r.more), func(s string) bool {
			return !strings.HasPrefix(s, "users")
		})
		l.rooms[prefix] = r
	}
	for _, prefix := range slices.Sorted(maps.Keys(l.rooms)) {
		r := l.rooms[prefix]
		switch rnd.IntN(8) {
		case 0:
			if !strings.HasPrefix(r.store, "redlock") && !strings.HasPrefix(r.both, "redlock") {
				r.more = append(r.more, "linger: 300ms", "linger_pause: 1s")
			}
		case 1:
			r.more = append(r.more, "interop: true")
		case 2:
			r.more = append(r.more, "max_hold: 8s")
		case 3:
			r.more = append(r.more, "heartbeat: 20s")
		case 4:
			r.more = append(r.more, fewHolds, "max_waiters: 6")
		}
		l.rooms[prefix] = r
	}
	for i := range rnd.IntN(3) {
		l.rooms[fmt.Sprintf("n%d:", i)] = room{store: names[rnd.IntN(len(names))],
			more: []string{fmt.Sprintf("ttl: %ds", 2+rnd.IntN(3))}}
	}
}

// faulty is a configuration that must be refused, with the words of the refusal.
type faulty struct {
	name  string
	words *regexp.Regexp
	well  bool // it is well-formed: only a running daemon refuses it
	text  func(l *layout) string
}

// faultyLayouts returns one configuration of each kind of fault. The stores fetcd, fredis and
// fredlock in them are not the episode's, and nothing connects to them.
func faultyLayouts() []faulty {
	top := func(name, words, line string) faulty {
		return faulty{name: name, words: regexp.MustCompile(words), text: func(l *layout) string {
			return l.yaml() + line + "\n"
		}}
	}
	space := func(name, words, fields string) faulty {
		return faulty{name: name, words: regexp.MustCompile(words), text: func(l *layout) string {
			l = l.clone()
			l.stores["fetcd"], l.stores["fredlock"], l.stores["fredis"] = "etcd://127.0.0.1:1",
				"redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "redis://127.0.0.1:1"
			return l.yaml() + "  \"q:\": {" + fields + "}\n"
		}}
	}
	none := space("both with a store that nobody serves", `connection refused`,
		"store: fredis, both: fredlock")
	none.well = true
	restart := top("what needs a restart", `changing it to .* needs a restart`, "")
	restart.well = true
	restart.text = func(l *layout) string {
		l = l.clone()
		l.fixed = slices.Clone(l.fixed)
		for i, line := range l.fixed {
			if strings.HasPrefix(line, "socket_mode") {
				l.fixed[i] = "socket_mode: 0600"
			}
		}
		return l.yaml()
	}
	return []faulty{
		top("an unknown field", `unknown field "tll"; did you mean "ttl"`, "tll: 1s"),
		top("a time without a unit", `max_hold: .*needs a unit`, "max_hold: 1"),
		top("a field twice", `ttl is set on line \d+ already`, "ttl: 3s"),
		top("no YAML", `did not find expected|mapping values|could not find expected`, "password: [\n"),
		top("a limit out of range", `heartbeat`, "heartbeat: 1ms"),
		top("an unknown user", `there is no user "nosuchuser"`, "users: [nosuchuser]"),
		space("an unknown store", `there is no store "nowhere"`, "store: nowhere"),
		space("from etcd by both", `fences would not rise: etcd decides its fences itself`,
			"store: fetcd, both: fredis"),
		space("both the same", `store and both name the same store`, "store: fredis, both: fredis"),
		space("lingering on Redlock", `Redlock does not support it`, "store: fredlock, linger: 1s"),
		space("lingering and interop", `linger is not available with interop`,
			"store: fredis, linger: 1s, interop: true"),
		space("too short a TTL", `is too short for this store`, "store: fetcd, ttl: 10ms"),
		space("the embedded store twice", `has some keys alone and others with both`, "both: fredis"),
		none, restart,
	}
}

const (
	userConns = 40 // connections that one user may have at once in a storm
	stormTTL  = 2 * time.Second
	firstLift = 4_000_000_000_000_000 // the first fence_epoch of keys that move to etcd or ZooKeeper
	nextLift  = 10_000_000_000_000    // what each of their moves adds to it
)
