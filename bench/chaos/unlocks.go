package chaos

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forcedHold is a hold that an operator has ended by force.
type forcedHold struct {
	site  *site
	key   string
	fence uint64
	holds int   // number of ended holds with this fence
	from  int64 // when the command was started
	at    int64 // when the command had reported it
}

// unlocked is the output of the command unlock.
type unlocked struct {
	Released int `json:"released"`
	Holds    []struct {
		Key   string `json:"key"`
		Fence uint64 `json:"fence,string"`
	} `json:"holds"`
}

// unlock ends a hold of a worker by force.
func (st *site) unlock() {
	out, _ := st.cli([]int{0}, "locks", "-o", "json")
	var rows []struct {
		Key, Mode, Fence string
		Holders          int
	}
	if json.Unmarshal([]byte(out), &rows) != nil {
		return
	}
	st.rnd.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	for _, r := range rows {
		if r.Holders == 0 {
			continue
		}
		words := []string{"unlock", "--force", "-o", "json", r.Key}
		if r.Mode == "permit" {
			words = append(words, "--semaphore")
		}
		if st.rnd.IntN(2) == 0 && r.Fence != "" {
			words = append(words, "--fence", r.Fence)
		}
		st.forced(words)
		return
	}
}

// forced runs an unlock, and records what it has ended.
func (st *site) forced(words []string) (n int) {
	from := now()
	want := []int{0, 66}
	if st.passing {
		want = append(want, 69)
	}
	out, code := st.cli(want, words...)
	if code != 0 {
		return 0
	}
	var u unlocked
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		st.s.fail("exit code", "%q: %v: %s", words, err, out)
		return 0
	}
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	ended, at := map[forcedHold]int{}, now()
	for _, h := range u.Holds {
		ended[forcedHold{site: st, key: h.Key, fence: h.Fence, from: from, at: at}]++
	}
	for f, n := range ended {
		f.holds = n
		st.s.forced = append(st.s.forced, f)
	}
	return u.Released
}

// nobody is another user.
var nobody = &syscall.Credential{Uid: 65534, Gid: 65534}

// others runs commands as another user: some that are allowed, and some that are not.
func (st *site) others() {
	from := now()
	st.cliAs(nobody, []int{0}, "locks", "x:")
	st.cliAs(nobody, []int{0}, "sessions")
	st.cliAs(nobody, st.unreached(from, 0, 75), "lock", "-n", st.own()+"other", "--", "true")
	st.cliAs(nobody, []int{77}, "lock", "-n", "u:key", "--", "true")
	st.cli(st.unreached(from, 0, 75), "lock", "-n", "u:key", "--", "true")
	st.cliAs(nobody, []int{77}, "unlock", "--force", st.own()+"0")
	// That user may not read the file.
	st.cliAs(nobody, []int{64}, "serve", "--takeover", "--config", st.conf(), "--socket", st.socket())
	st.cliAs(nobody, []int{77}, "serve", "--takeover", "--ttl", stormTTL.String(),
		"--socket", st.socket())
	st.crowd()
}

// crowd connects more often as another user than a user may. No other client may notice.
func (st *site) crowd() {
	b, _ := os.ReadFile(st.conf())
	if !strings.Contains(string(b), fmt.Sprint("max_user_conns: ", userConns)) {
		return
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	err := as(nobody, func() error {
		for range userConns + 10 {
			c, err := net.DialTimeout("unix", st.socket(), 5*time.Second)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	if err != nil {
		st.s.fail("other users", "daemon %d: %v", st.no, err)
		return
	}
	var refused atomic.Int64
	together(conns, func(c net.Conn) { // no hello is sent, so an answer is a refusal
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		var b [256]byte
		if n, _ := c.Read(b[:]); n > 0 {
			refused.Add(1)
		}
	})
	if refused.Load() < 10 {
		st.s.fail("other users", "daemon %d: %d of %d connections of a user are refused, with at most %d",
			st.no, refused.Load(), len(conns), userConns)
	}
	st.cli([]int{0}, "sessions")
}

// as runs do on a thread that belongs to another user. The kernel's checks see that user, and so do
// the peers of connections that do makes.
func as(who *syscall.Credential, do func() error) error {
	done := make(chan error)
	go func() {
		done <- func() error {
			lockThread() // for good: the thread ends with the goroutine
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(who.Gid), uintptr(who.Gid),
				uintptr(who.Gid)); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(who.Uid), uintptr(who.Uid),
				uintptr(who.Uid)); e != 0 {
				return e
			}
			return do()
		}()
	}()
	return <-done
}

// judgeForced compares each forced unlock with what the workers were told. A hold that it ended
// must be lost, or its release must fail. Readers may share a fence. If some readers were granted
// the key meanwhile, it is not known which of them were ended.
func (s *storm) judgeForced() {
	ops := s.history().ops()
	var v verdict
	for _, f := range s.forced {
		var there, kept []*op
		for _, p := range ops {
			if p.name != f.key || p.fence != f.fence || s.sites[p.host] != f.site ||
				!p.granted() || p.of != 0 {
				continue
			}
			if end := p.given; p.answered < f.at && (end == 0 || end > f.from) {
				there = append(there, p)
			}
			if p.answered < f.from && p.lost == 0 && p.gave > f.at && p.gaveResult == "ok" {
				kept = append(kept, p)
			}
		}
		if len(kept) > 0 && len(there) <= f.holds {
			v.fail("unlock", "%s: %v was ended by force at %d, and released as if it was held at %d", f.key,
				kept[0], f.at, kept[0].gave)
		}
	}
	s.Violations = append(s.Violations, v.found...)
}
