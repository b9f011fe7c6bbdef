package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// refusedTakeover matches the message of a successor that did not take over: the reasons that the
// documents give.
var refusedTakeover = regexp.MustCompile(strings.Join([]string{
	`the daemon is ending, reloading or already being taken over`,
	`the daemon has been told to end`,
	`is no longer in the configuration but still has \d+ keys`,
	`is not the same in its configuration: reload this daemon first`,
	`the other process did not commit`,
	`which (continues to serve|is ending|has ended|does not answer)`,
	`another daemon (serves|has)|in use`,
	`EOF|connection reset|broken pipe|i/o timeout`,
}, "|"))

// takeOver starts successors that take over from the daemon; if there are several, at once. In the
// end exactly one process serves. Unless during is nil, it is called while the successors try.
// takeOver returns whether a successor has taken over.
func (st *site) takeOver(what string, successors int, during func([]*process)) bool {
	from := now()
	defer st.s.doing(what, st, nil)()
	keep := st.hold()
	var all []*process
	for range successors {
		all = append(all, st.launch("--takeover"))
	}
	old := st.process
	if during != nil {
		during(all)
	}
	st.contest(what, from, all)
	if during == nil && st.process != old {
		keep.over(what, st.lostByTakeover()...)
	}
	keep.drop()
	return slices.Contains(all, st.process)
}

// contest waits until exactly one process is left, of the daemon and its successors, and checks
// that it serves. If none is left, contest starts another daemon.
func (st *site) contest(what string, from int64, successors []*process) {
	all := append([]*process{st.process}, successors...)
	last := st.lastAlive(what, all)
	passed := 0
	for i, p := range all {
		if p.ended() {
			st.ended1(what, from, p, i > 0)
			for _, q := range successors {
				passed += one(passedTo(p, q))
			}
		}
	}
	if last == nil {
		st.rest()
		st.start()
		return
	}
	if last == all[0] {
		st.s.put(what)
	}
	st.process = last
	if !st.serves() {
		// A successor that is killed just after it has taken over leaves no process. Nor does one
		// whose takeover fails because the daemon was told to end: it ends after the daemon.
		if st.told && last != all[0] && last.ended() {
			st.ended1(what, from, last, true)
		} else if !st.crashedBetween(successors) {
			st.s.fail("takeover", "%s at daemon %d: nobody serves: %s", what, st.no, tail(st.log()))
		}
		if !st.process.ended() {
			st.process.end(syscall.SIGKILL)
		}
		st.rest()
		st.start()
		return
	}
	took := 0
	for _, q := range successors {
		for _, p := range all {
			took += one(tookFrom(q, p))
		}
	}
	if took != passed && !st.crashedBetween(all) {
		st.s.fail("takeover", "%s at daemon %d: %d took over, and %d were taken over", what,
			st.no, took, passed)
	}
}

// lastAlive waits until at most one of all runs, and not the daemon if that was told to end. It
// returns that process, or nil.
func (st *site) lastAlive(what string, all []*process) *process {
	var alive []*process
	if !st.s.until(2*patience, func() bool {
		alive = nil
		for _, p := range all {
			if !p.ended() {
				alive = append(alive, p)
			}
		}
		return len(alive) == 0 || len(alive) == 1 && !(st.told && alive[0] == st.process)
	}) {
		st.s.fail("takeover", "%s at daemon %d: %d processes are left: %s", what, st.no, len(alive),
			tail(alive[len(alive)-1].log))
		for _, p := range alive {
			p.end(syscall.SIGKILL)
		}
		return nil
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[0]
}

// serves reports whether the present process serves, after a wait for that.
func (st *site) serves() bool {
	return st.s.until(patience, func() bool {
		c, err := st.dial()
		if err == nil {
			c.Close()
		}
		return err == nil || st.process.ended()
	}) && !st.process.ended()
}

// crashedBetween reports whether a process was killed. Its log may then lack what it did last.
func (st *site) crashedBetween(all []*process) bool {
	for _, p := range all {
		if p.ended() && p.code() == 128+int(syscall.SIGKILL) {
			return true
		}
	}
	return false
}

// passedTo reports whether p has logged that q has taken over from it. tookFrom reports whether q
// has logged that. Processes may share a log.
func passedTo(p, q *process) bool {
	return said(p, fmt.Sprintf(`"event":"taken_over","pid":%d,`, q.cmd.Process.Pid))
}

func tookFrom(q, p *process) bool {
	return said(q, fmt.Sprintf(`"event":"took_over","from":%d}`, p.cmd.Process.Pid))
}

func said(p *process, words string) bool {
	b, _ := os.ReadFile(p.log)
	return strings.Contains(string(b), words)
}

// ended1 checks how a process that took part has ended.
func (st *site) ended1(what string, from int64, p *process, successor bool) {
	code := p.code()
	switch {
	// The process was taken over or drained, or this program has killed it.
	case code == 0 || code == 128+int(syscall.SIGKILL):
	// A signal arrived after that.
	case (code == 128+int(syscall.SIGTERM) || code == 128+int(syscall.SIGHUP)) &&
		said(p, `"event":"taken_over"`):
	case !successor:
		st.s.fail("exit code", "%s: daemon %d ends with %d: %s", what, st.no, code, tail(p.log))
	case code == 75 && refusedTakeover.MatchString(tail(p.log)):
	case code == 69 && st.s.troubled(from):
	default:
		st.s.fail("exit code", "%s: the successor of daemon %d ends with %d: %s", what, st.no,
			code, tail(p.log))
	}
}

func (st *site) pause(most time.Duration) {
	time.Sleep(time.Duration(st.rnd.Int64N(int64(most))))
}

// at waits for a random moment of a takeover by p: at most most after its start, or after it has
// begun to open stores.
func (st *site) at(p *process, most time.Duration) {
	if st.rnd.IntN(2) == 0 {
		st.s.until(patience, func() bool { return p.ended() || size(p.log) > 0 })
	}
	st.pause(most)
}

// takeOverKilled kills the successor during a takeover. If the successor has just taken over, no
// process is left.
func (st *site) takeOverKilled() {
	st.takeOver("takeover: successor killed", 1, func(all []*process) {
		st.at(all[0], 400*time.Millisecond)
		all[0].signal(syscall.SIGKILL)
	})
}

// takeOverStopped stops the successor for a while: before it is ready, while it is, or afterwards.
func (st *site) takeOverStopped() {
	st.takeOver("takeover: successor stopped", 1, func(all []*process) {
		st.at(all[0], 400*time.Millisecond)
		all[0].freeze()
		st.pause(stormTTL)
		all[0].thaw()
	})
}

// takeOverReloading reloads at the same time. Only another reload makes sure which of the two
// configurations is used.
func (st *site) takeOverReloading() {
	l := st.layout.clone()
	st.vary(l)
	st.takeOver("takeover: during a reload", 1, func(all []*process) {
		st.at(all[0], 200*time.Millisecond)
		st.tries(l)
		st.write(l.yaml())
		st.signal(syscall.SIGHUP)
	})
	st.reloadUntil("after a takeover")
}

// takeOverDraining tells the daemon to end at the same time.
func (st *site) takeOverDraining() {
	st.takeOver("takeover: during a drain", 1, func(all []*process) {
		st.at(all[0], 200*time.Millisecond)
		st.signal(syscall.SIGTERM)
		st.told = true
	})
	st.told = false
}

// takeOverUnlocking unlocks by force at the same time.
func (st *site) takeOverUnlocking() {
	seed := st.rnd.Uint64()
	st.takeOver("takeover: during unlocks", 1, func(all []*process) {
		over := func() bool { return all[0].ended() || said(all[0], `"event":"took_over"`) || st.ended() }
		wait := beside(func() { st.unlockSteadily(seed, over) })
		st.passing = true
		for !over() {
			st.unlock()
		}
		st.passing = false
		wait()
	})
}

// takeOverRerouted gives the successor a configuration with the daemon's own keys in another store.
func (st *site) takeOverRerouted() {
	from := now()
	l := st.layout.clone()
	st.moveOwn(l)
	st.tries(l)
	st.write(l.yaml())
	if st.takeOver("takeover: with other routes", 1, nil) {
		st.uses(l, from)
	}
	st.reloadUntil("after a takeover")
}

// takeOverOther gives the successor a configuration without one of the daemon's stores, or a
// malformed one. The daemon must refuse the successor and continue to serve.
func (st *site) takeOverOther() {
	old := st.process
	keep := st.hold()
	defer keep.drop()
	text, want := "tll: 1s\n", 64
	if st.rnd.IntN(2) == 0 {
		text, want = st.without(st.s.depots[1]).yaml(), 75
	}
	from := now()
	st.write(text)
	p := st.launch("--takeover")
	if !p.ends(2 * patience) {
		st.s.fail("takeover", "a successor with another configuration does not end: %s", tail(p.log))
		p.end(syscall.SIGKILL)
	}
	if c := p.code(); c != want && !(c == 69 && st.s.troubled(from)) {
		st.s.fail("exit code", "a successor with another configuration ends with %d, not %d: %s", c,
			want, tail(p.log))
	}
	if old.ended() {
		st.s.fail("takeover", "daemon %d has ended for a successor with another configuration: %s",
			st.no, tail(old.log))
		st.write(st.layout.yaml())
		st.rest()
		st.start()
		return
	}
	st.write(st.layout.yaml())
	keep.over("a takeover that is refused")
}

// without returns the daemon's configuration with the embedded store in place of d.
func (st *site) without(d *depot) *layout {
	l := st.layout.clone()
	for prefix, r := range l.rooms {
		if d.in(r) {
			l.rooms[prefix] = room{}
		}
	}
	return l
}

// takeOverCalled makes the daemon start the program that is installed now, by SIGUSR2.
func (st *site) takeOverCalled() {
	from := now()
	old := st.process
	pid := st.call()
	if pid == 0 {
		return
	}
	p, err := adopt(old, pid)
	if err != nil {
		if old.ended() {
			st.s.fail("takeover", "daemon %d has ended, and so has the successor that it called: %v: %s",
				st.no, err, tail(old.log))
			st.rest()
			st.start()
			return
		}
		st.s.put("takeover: called") // the successor has ended, and its parent has noticed
		return
	}
	st.s.keepTrack(p)
	st.contest("takeover: called", from, []*process{p})
}

var called = regexp.MustCompile(`"event":"successor_called","pid":(\d+)`)

// call sends SIGUSR2, and returns the id of the process that the daemon has started.
func (st *site) call() (pid int) {
	from := size(st.log())
	st.signal(syscall.SIGUSR2)
	if !st.s.until(patience, func() bool {
		b, _ := os.ReadFile(st.log())
		if m := called.FindSubmatch(b[min(int(from), len(b)):]); m != nil {
			pid, _ = strconv.Atoi(string(m[1]))
		}
		return pid > 0 || st.ended()
	}) || pid == 0 {
		st.s.fail("takeover", "daemon %d does not call a successor: %s", st.no, tail(st.log()))
	}
	return pid
}

// adopt waits until the process pid, which old has started, is a child of this process. That is so
// when old has ended. adopt returns an error if the process ends before.
func adopt(old *process, pid int) (*process, error) {
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, err
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if parent, _ := strconv.Atoi(f[1]); parent == os.Getpid() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	found, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: &exec.Cmd{Path: old.cmd.Path, Process: found}, log: old.log,
		done: make(chan struct{}), watch: old.watch}
	go func() {
		defer close(p.done)
		p.state, _ = found.Wait()
	}()
	return p, nil
}

// takeOverFailing installs a program that fails, and makes the daemon start it.
func (st *site) takeOverFailing() {
	keep := st.hold()
	defer keep.drop()
	programs := []string{"#!/bin/sh\nexit 1\n", "#!/bin/sh\necho cannot run >&2\nexit 64\n",
		"#!/bin/sh\nsleep 1\nexit 0\n", "not a program"}
	text := programs[st.rnd.IntN(len(programs))]
	st.install([]byte(text))
	from := size(st.log())
	st.signal(syscall.SIGUSR2)
	if !st.s.until(patience, func() bool {
		b, _ := os.ReadFile(st.log())
		return strings.Contains(string(b[min(int(from), len(b)):]), `"event":"takeover_failed"`)
	}) {
		st.s.fail("takeover", "daemon %d does not say that its successor (%q) has ended: %s", st.no, text,
			tail(st.log()))
	}
	b, err := os.ReadFile(st.s.Bin)
	if err != nil {
		panic(broken{err})
	}
	st.install(b)
	if st.ended() {
		st.s.fail("takeover", "daemon %d has ended for a program that fails: %s", st.no, tail(st.log()))
		st.rest()
		st.start()
		return
	}
	keep.over("a takeover by a program that fails")
}

// install replaces the program in one step, as package managers do. The daemon continues with the
// file from which it was started.
func (st *site) install(program []byte) {
	next := filepath.Join(st.dir, "next")
	err := os.WriteFile(next, program, 0o755)
	if err == nil {
		err = os.Rename(next, st.bin)
	}
	if err != nil {
		panic(broken{err})
	}
}
