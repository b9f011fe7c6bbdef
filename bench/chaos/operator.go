package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// action is one thing that an operator does to a daemon. It runs with the site's mu held.
type action struct {
	name string
	do   func(*site)
	can  func(*site) bool // nil if it is always possible
}

// actions returns everything that an operator does to one daemon.
func actions() []action {
	return []action{
		{name: "reload: other settings", do: func(st *site) {
			st.reload("other settings", st.vary, time.Now())
		}},
		{name: "reload: keys to another store", do: (*site).reroute},
		{name: "reload: bad", do: (*site).reloadBad},
		{name: "reload: several at once", do: (*site).reloadMany},
		{name: "takeover", do: func(st *site) { st.takeOver("takeover", 1, nil) }},
		{name: "takeover: two at once", do: func(st *site) {
			st.takeOver("takeover: two at once", 2, nil)
		}},
		{name: "takeover: successor killed", do: (*site).takeOverKilled},
		{name: "takeover: successor stopped", do: (*site).takeOverStopped},
		{name: "takeover: during a reload", do: (*site).takeOverReloading},
		{name: "takeover: during a drain", do: (*site).takeOverDraining},
		{name: "takeover: during unlocks", do: (*site).takeOverUnlocking},
		{name: "takeover: with other routes", do: (*site).takeOverRerouted},
		{name: "takeover: other configuration", do: (*site).takeOverOther},
		{name: "takeover: called", do: (*site).takeOverCalled},
		{name: "takeover: a program that fails", do: (*site).takeOverFailing},
		{name: "drain", do: (*site).drain},
		{name: "end at once", do: (*site).endAtOnce},
		{name: "kill", do: (*site).kill},
		{name: "unlock", do: (*site).unlock},
		{name: "unlock: lock of a client that listens", do: (*site).unlockOwn},
		{name: "unlock: lock of a client that stands still", do: (*site).unlockStopped},
		{name: "look", do: (*site).look},
		{name: "command under a lock", do: (*site).command},
		{name: "second daemon", do: (*site).second},
		{name: "other users", do: (*site).others, can: func(*site) bool { return os.Geteuid() == 0 }},
		{name: "full disk", do: (*site).fillDisk, can: func(st *site) bool { return st.small }},
	}
}

// operate performs one action after the other until the time is over. First the operators together
// perform each action once, in a random order. After that, each operator performs all actions,
// again and again.
func (st *site) operate(until time.Time) {
	rnd := rand.New(rand.NewPCG(st.s.seed, uint64(200+st.no))) // not st.rnd, which mu guards
	for round := 0; ; round++ {
		all := actions()
		order := rnd.Perm(len(all))
		if round == 0 {
			order = rand.New(rand.NewPCG(st.s.seed, 70)).Perm(len(all))
		}
		for at, i := range order {
			if time.Now().After(until) {
				return
			}
			if round == 0 && at%len(st.s.sites) != st.no {
				continue
			}
			if a := all[i]; a.can == nil || a.can(st) {
				st.do(a)
			}
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
	}
}

func (st *site) do(a action) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !strings.HasPrefix(a.name, "reload: o") {
		st.s.note(a.name)
	}
	defer st.s.doing(a.name, st, nil)()
	began := time.Now()
	a.do(st)
	st.s.t.Logf("%s daemon %d: %s took %v", began.Format(time.StampMilli), st.no, a.name,
		time.Since(began))
}

func (st *site) vary(l *layout) { l.vary(st.rnd, st.s.names()) }

// reroute moves the keys of the daemon's own namespace to another store. Their fences continue to
// rise. No fence_epoch is needed between stores that take their bases from the clock. If etcd or
// ZooKeeper may be among the stores, each move raises fence_epoch above the epochs of all daemons,
// since a store may count all keys together.
func (st *site) reroute() {
	varied := st.rnd.IntN(2) == 0
	st.reload("keys to another store", func(l *layout) {
		if varied {
			st.vary(l)
		}
		st.moveOwn(l)
	}, time.Now())
}

// moveOwn moves the daemon's own keys to a store that they may be in.
func (st *site) moveOwn(l *layout) {
	names := st.homes()
	to := names[st.rnd.IntN(len(names))]
	r := l.rooms[st.own()]
	if r.store != to && st.s.lifted {
		r.epoch = st.s.lift()
	}
	r.store, r.more = to, nil
	l.rooms[st.own()] = r
}

// lift returns the next fence_epoch for a daemon's own keys.
func (s *storm) lift() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch += nextLift
	return s.epoch
}

// embeddedAhead is how long the bases of the embedded store may be ahead of the clock after the
// start of a daemon.
const embeddedAhead = int64(65 * time.Second)

// homes returns the stores that the daemon's own keys may be in.
func (st *site) homes() (names []string) {
	switch {
	case st.s.toOrdered:
		return []string{st.s.depots[0].name}
	case st.s.lifted:
		return st.s.names()
	case st.layout.rooms[st.own()].store == "" && st.broke > 0 && now() < st.broke+embeddedAhead:
		return []string{""}
	}
	names = []string{""}
	for _, d := range st.s.depots {
		if !d.ordered() {
			names = append(names, d.name)
		}
	}
	return names
}

// ordered reports whether the fence bases of the store are its own order of events.
func (d *depot) ordered() bool { return strings.HasPrefix(d.kind, "etcd") || d.kind == "zookeeper" }

// reloadBad makes the daemon read a configuration that it has to refuse. The daemon must state the
// reason, and keep its configuration.
func (st *site) reloadBad() {
	all := faultyLayouts()
	f := all[st.rnd.IntN(len(all))]
	keep := st.hold()
	defer keep.drop()
	before, err := st.routes()
	if err != nil {
		st.s.fail("reload", "daemon %d cannot be reached: %v", st.no, err)
		return
	}
	st.write(f.text(st.layout))
	code := 64
	if f.well {
		code = 0
	}
	st.cli([]int{code}, "config", "check", "--config", st.conf())
	event, line := st.tell()
	if event != "reload_refused" || !f.words.MatchString(line) {
		st.s.fail("reload", "daemon %d was given %s, and says %q: %s", st.no, f.name, event, line)
	}
	st.write(st.layout.yaml())
	after, err := st.routes()
	if err != nil || after != before {
		st.s.fail("reload", "daemon %d has other routes after it has refused %s (%v):\n%s\nbefore:\n%s",
			st.no, f.name, err, after, before)
	}
	keep.over("a reload that is refused")
}

// reloadMany sends SIGHUP several times while the file changes.
func (st *site) reloadMany() {
	for range 2 + st.rnd.IntN(3) {
		l := st.layout.clone()
		st.vary(l)
		st.tries(l)
		st.write(l.yaml())
		st.signal(syscall.SIGHUP)
		time.Sleep(time.Duration(st.rnd.IntN(20)) * time.Millisecond)
	}
	st.reloadUntil("several at once")
}

// reloadUntil reloads the layout until the daemon certainly uses it. What the daemon logs may
// belong to an earlier SIGHUP.
func (st *site) reloadUntil(what string) {
	began := time.Now()
	for range 3 {
		if st.ended() || !st.reload(what, func(*layout) {}, began) {
			return
		}
	}
}

// drain tells the daemon to end, and starts it again.
func (st *site) drain() {
	st.signal(syscall.SIGTERM)
	// The daemon drains, or has ended. A busy machine may handle the signal late.
	if !st.s.until(patience, func() bool {
		_, code := st.cli([]int{0, 69}, "health", "-q")
		return code == 69
	}) {
		st.s.fail("exit code", "health at daemon %d ends with 0 after SIGTERM", st.no)
	}
	st.stopWith(syscall.SIGTERM, 0, 128+int(syscall.SIGTERM))
	st.start()
}

// endAtOnce tells the daemon to end twice, so that it does not drain. The second signal may be too
// late. Two signals that are pending together may arrive in either order.
func (st *site) endAtOnce() {
	st.signal(syscall.SIGTERM)
	time.Sleep(time.Duration(st.rnd.IntN(100)) * time.Millisecond)
	st.stopWith(syscall.SIGINT, 0, 128+int(syscall.SIGINT), 128+int(syscall.SIGTERM))
	st.rest()
	st.start()
}

// kill ends the daemon as a crash does. Its holds and waiters then leave the stores only when their
// time is over.
func (st *site) kill() {
	done := st.forsake()
	st.stopWith(syscall.SIGKILL, 128+int(syscall.SIGKILL))
	done()
	st.rest()
	st.start()
}

// rest waits until no lease of an earlier process is in force. If keys have moved shortly before,
// the next process may keep them in another store than the earlier one did.
func (st *site) rest() { time.Sleep(stormTTL + stormTTL/10) }

// second starts another daemon at the same socket.
func (st *site) second() {
	p := st.launch()
	if !p.ends(patience) {
		st.s.fail("wait", "a second daemon at the socket does not end")
		p.end(syscall.SIGKILL)
		return
	}
	if p.code() != 75 {
		st.s.fail("exit code", "a second daemon at the socket ends with %d, not 75: %s",
			p.code(), tail(p.log))
	}
}

// look runs commands that only show something.
func (st *site) look() {
	from := now()
	key := fmt.Sprint(st.own(), st.rnd.IntN(3))
	for _, words := range [][]string{{"locks"}, {"waiters", "-o", "json"}, {"sessions"},
		{"locks", "x:"}, {"version"}} {
		st.cli([]int{0}, words...)
	}
	st.cli([]int{0}, "config", "check", "--config", st.conf(), key)
	st.cli(st.unreached(from, 0, 69), "locks", "--store") // Redlock cannot list its locks
	st.cli(st.unreached(from, 0, 66), "who", key)
	st.cli(st.unreached(from, 0), "status")
	st.cli(st.unreached(from, 0), "health")
	st.cli([]int{64}, "locks", "--no-such-flag")
	st.cli([]int{64}, "unlock", key)
	out, _ := st.cli([]int{0}, "locks", "-o", "json")
	var rows []any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		st.s.fail("exit code", "locks -o json: %v: %s", err, out)
	}
}

// command runs commands under locks.
func (st *site) command() {
	from := now()
	key := st.own() + "command"
	codes := func(code int) []int {
		bounded := slices.ContainsFunc(st.layout.rest, func(line string) bool {
			return strings.HasPrefix(line, "max_wait:")
		})
		if slices.Contains(st.layout.rooms[st.own()].more, fewHolds) || bounded && st.s.troubled(from) {
			return st.unreached(from, code, 75) // a store may be away for longer than max_wait
		}
		return st.unreached(from, code)
	}
	st.cli(codes(3), "lock", "-w", "20s", key, "--", "sh", "-c",
		"test -n \"$LOCKSIDECAR_FENCE\" && exit 3")
	st.cli(st.unreached(from, 0, 75), "lock", "-n", fmt.Sprint("x:", st.rnd.IntN(3)), "--", "true")
	st.cli(codes(127), "lock", "-w", "20s", key, "--", "/no/such/program")
	st.cli(codes(128+9), "lock", "-w", "20s", key, "--", "sh", "-c", "kill -9 $$")
}
