package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// site is a daemon in a storm, with its own operator.
type site struct {
	*host
	s     *storm
	rnd   *rand.Rand // of the operations; guarded by mu
	small bool       // its socket and its state are on a small disk

	settings []setting // guarded by s.mu

	// mu is held while an operator does something to the daemon. It guards the process and all fields
	// below.
	mu     sync.Mutex
	layout *layout // the configuration that the daemon uses now
	logs   int     // number of logs so far
	told   bool    // the daemon was told to end, and a takeover is tried
	first  gauge   // descriptors and goroutines before anything happened
	// passing means that a takeover may happen while a command runs. The command may have to be
	// repeated then.
	passing bool
	broke   int64 // when a process was last started that took nothing over
	// forsaken counts how often the daemon was killed with holds and waiters of keys that are not used
	// again.
	forsaken int
}

func (st *site) own() string  { return fmt.Sprintf("p%d:", st.no) }
func (st *site) conf() string { return filepath.Join(st.dir, "conf.yaml") }

// log returns the log of the present process.
func (st *site) log() string { return st.process.log }

// raceEnv makes the race detector tell of every race, in the exit code, too. The detector looks for
// races at the end of a process for a tenth of a second, because a storm ends a hundred processes.
// By default, it would take a second.
const raceEnv = "GORACE=halt_on_error=0 exitcode=99 atexit_sleep_ms=100"

// launch starts a process of the program with a log of its own.
func (st *site) launch(more ...string) *process {
	st.logs++
	words := append([]string{"serve", "--config", st.conf(), "--socket", st.socket(), "--log-format",
		"json"}, more...)
	cmd := exec.Command(st.bin, words...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", raceEnv)
	p, err := launch(cmd, filepath.Join(st.dir, fmt.Sprint("log", st.logs)))
	if err != nil {
		panic(broken{err})
	}
	p.watch = st.s.watch
	st.s.keepTrack(p)
	return p
}

func (s *storm) keepTrack(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, p)
}

// start starts a daemon with the configuration that the last one used. It tries again as long as a
// store does not answer.
func (st *site) start() {
	st.write(st.layout.yaml())
	if st.process != nil {
		st.broke = now()
	}
	for end := st.s.watch.ran() + patience; ; time.Sleep(200 * time.Millisecond) {
		began := now()
		p := st.launch()
		for !p.ended() {
			if c, err := st.dial(); err == nil {
				c.Close()
				st.process = p
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		if p.code() != 69 || !st.s.troubled(began) {
			st.s.fail("exit code", "daemon %d ends with %d as it starts: %s", st.no, p.code(), tail(p.log))
		}
		if st.s.watch.ran() > end {
			panic(broken{fmt.Errorf("daemon %d does not start: %s", st.no, tail(p.log))})
		}
	}
}

// write replaces the configuration in one step, because a daemon may read it at any time.
func (st *site) write(text string) {
	err := os.WriteFile(st.conf()+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(st.conf()+".new", st.conf())
	}
	if err != nil {
		panic(broken{err})
	}
}

// stopWith ends the daemon and compares the exit code.
func (st *site) stopWith(sig syscall.Signal, want ...int) {
	ok := st.end(sig)
	switch code := st.code(); {
	case !ok:
		st.s.fail("wait", "daemon %d does not end at %v: %s", st.no, sig, tail(st.log()))
	case !slices.Contains(want, code):
		st.s.fail("exit code", "daemon %d ends with %d at %v, not %v: %s", st.no, code, sig, want,
			tail(st.log()))
	}
}

var outcomes = regexp.MustCompile(`"event":"(reloaded|reload_refused)".*`)

// tell makes the daemon read the file, and returns what the daemon logs about that. event is empty
// if the daemon logs nothing.
func (st *site) tell() (event, line string) {
	from := int(size(st.log()))
	st.signal(syscall.SIGHUP)
	st.s.until(patience, func() bool {
		b, _ := os.ReadFile(st.log())
		if m := outcomes.FindSubmatch(b[min(from, len(b)):]); m != nil &&
			bytes.HasSuffix(b, []byte("\n")) {
			event, line = string(m[1]), strings.ReplaceAll(string(m[0]), `\"`, `"`)
		}
		return event != "" || st.ended()
	})
	return event, line
}

func size(path string) int64 {
	i, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return i.Size()
}

// reload changes the layout, and makes the daemon use it. It returns true if the daemon does. The
// daemon may refuse the layout only if a store has not answered since from.
func (st *site) reload(what string, change func(*layout), from time.Time) bool {
	st.s.note("reload: " + what)
	defer st.s.doing("reload: "+what, st, nil)()
	began, at := now()-int64(time.Since(from)), now()
	l := st.layout.clone()
	change(l)
	st.write(l.yaml())
	switch event, line := st.tell(); {
	case event == "reloaded":
		st.uses(l, at)
		return true
	case event == "":
		st.s.fail("reload", "daemon %d says nothing to SIGHUP (%s); code %v: %s", st.no, what, st.ended(),
			tail(st.log()))
	case !st.s.troubled(began) && !late.MatchString(line):
		st.s.fail("reload", "daemon %d refuses what is good (%s): %s", st.no, what, line)
	}
	st.write(st.layout.yaml())
	return false
}

// late matches the words for steps that take too long on a machine that is too busy.
var late = regexp.MustCompile(`i/o timeout|deadline exceeded|no answer in time|does not answer|failed at the store|timed out|not answer|no session at zookeeper.*: connecting$|its deadline has passed|its deadline passed without an answer|it does not vote for another`)

// cli runs a command of the program as an operator does. The exit code has to be one of want.
func (st *site) cli(want []int, words ...string) (out string, code int) {
	return st.cliAs(nil, want, words...)
}

func (st *site) cliAs(who *syscall.Credential, want []int, words ...string) (out string, code int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, st.bin, words...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+st.socket(), "GOMAXPROCS=2",
		raceEnv)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: who}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		panic(broken{fmt.Errorf("%v: %w", words, err)})
	}
	code = cmd.ProcessState.ExitCode()
	said := stdout.String() + stderr.String()
	switch {
	case ctx.Err() != nil:
		st.s.fail("wait", "%q at daemon %d does not end", words, st.no)
	case !slices.Contains(want, code) && !(code == 69 && late.MatchString(said)):
		st.s.fail("exit code", "%q at daemon %d ends with %d, not %v: %s", words, st.no, code, want, said)
	case crashed.MatchString(said):
		st.s.fail("crash", "%q: %s", words, said)
	}
	return stdout.String(), code
}

// unreached returns codes, and also the exit code for a store that does not answer, if there may be
// one.
func (st *site) unreached(from int64, codes ...int) []int {
	if st.s.troubled(from) {
		codes = append(codes, 69)
	}
	return codes
}

// routes returns the namespaces that the daemon states, with their stores.
func (st *site) routes() (string, error) {
	c, err := st.dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	var all []string
	for _, n := range c.Welcome().Namespaces {
		all = append(all, fmt.Sprintf("%+v", n))
	}
	return strings.Join(all, "\n"), nil
}
