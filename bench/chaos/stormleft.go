package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// admin returns a client for the daemon's admin socket. It asks for no compression, which costs a
// daemon with the race detector more than all else in an answer.
func (h *host) admin() *http.Client {
	return &http.Client{Timeout: 20 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", h.socket()+".admin")
			}}}
}

type viewHold struct {
	Key  string `json:"key"`
	Held int64  `json:"held_ms"`
}

// holds returns the holds on this host whose keys begin with prefix, oldest first.
func (h *host) holds(prefix string) ([]viewHold, error) {
	r, err := h.admin().Get("http://localhost/view.json?limit=1000&prefix=" + prefix)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var v struct {
		Holds []viewHold `json:"holds"`
	}
	return v.Holds, json.NewDecoder(r.Body).Decode(&v)
}

// gauge counts what a process has open.
type gauge struct {
	connections int // connections to stores, and their pollers; their number depends on the load
	descriptors int // all other descriptors
	goroutines  int
}

// plus returns g with n more descriptors, and with n+spare more connections and goroutines.
func (g gauge) plus(n, spare int) gauge {
	return gauge{g.connections + n + spare, g.descriptors + n, g.goroutines + n + spare}
}

// within reports whether g has no more of anything than most.
func (g gauge) within(most gauge) bool {
	return g.connections <= most.connections && g.descriptors <= most.descriptors &&
		g.goroutines <= most.goroutines
}

func (g gauge) least(o gauge) gauge {
	return gauge{min(g.connections, o.connections), min(g.descriptors, o.descriptors),
		min(g.goroutines, o.goroutines)}
}

func (h *host) gauge() (g gauge, err error) {
	dir := fmt.Sprintf("/proc/%d/", h.cmd.Process.Pid)
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		return g, err
	}
	table, err := os.ReadFile(dir + "net/unix")
	if err != nil {
		return g, err
	}
	local := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 6 {
			local["socket:["+f[6]+"]"] = true
		}
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + "fd/" + fd.Name()); strings.HasPrefix(to, "anon_inode:") ||
			strings.HasPrefix(to, "socket:") && !local[to] {
			g.connections++
		} else {
			g.descriptors++
		}
	}
	r, err := h.admin().Get("http://localhost/metrics")
	if err != nil {
		return g, err
	}
	defer r.Body.Close()
	for in := bufio.NewScanner(r.Body); in.Scan(); {
		if n, ok := strings.CutPrefix(in.Text(), "go_goroutines "); ok {
			_, err = fmt.Sscan(n, &g.goroutines)
		}
	}
	return g, err
}

// descriptors lists the open descriptors, each with its count.
func (h *host) descriptors() string {
	dir := fmt.Sprintf("/proc/%d/fd/", h.cmd.Process.Pid)
	fds, _ := os.ReadDir(dir)
	counts := map[string]int{}
	for _, fd := range fds {
		to, _ := os.Readlink(dir + fd.Name())
		kind, _, _ := strings.Cut(to, "[")
		counts[kind]++
	}
	return summary(counts)
}

// measureFirst records what the daemons have open before any client connects.
func (s *storm) measureFirst() {
	for _, st := range s.sites {
		g, err := st.gauge()
		if err != nil {
			panic(broken{err})
		}
		st.first = g
	}
}

// poolSpare is how many more connections to stores there may be after load. There may be a third as
// many goroutines for them.
const poolSpare = 60

// leakDrill reloads and takes over again and again while nothing else happens. Afterwards a daemon
// may have more open than before, but less than one for each turn. Over the whole storm, it may
// have more open only as far as connections need that.
func (st *site) leakDrill() {
	quiet := func(what string, most gauge) gauge {
		var g gauge
		var err error
		if !st.s.until(patience/3, func() bool {
			g, err = st.gauge()
			return err == nil && g.within(most)
		}) {
			st.s.fail("leak", "daemon %d has %+v open %s, and had at most %+v to have (%v): %s", st.no, g,
				what, most, err, st.descriptors())
		}
		return g
	}
	quiet("after the storm", gauge{st.first.connections + 2*poolSpare, st.first.descriptors + Drills/2,
		st.first.goroutines + 3*poolSpare})
	drills := st.s.drills
	if drills == 0 {
		return
	}
	spare := 0 // each server may have some more connections, which need goroutines
	for _, d := range st.s.depots {
		spare += 4 * len(d.servers)
	}
	bad := faultyLayouts()
	calm := time.Now()
	turn := func(i int) {
		home := st.layout.rooms[st.own()]
		st.reload("drill", func(l *layout) {
			name := st.s.depots[i%2].name
			l.rooms["drill:"] = room{store: name}
			l.stores["drill"] = st.s.depots[1-i%2].url(st.s.depots[1-i%2].servers)
			l.rooms["drill2:"] = room{store: "drill"}
		}, calm)
		st.write(bad[i%len(bad)].text(st.layout))
		if event, line := st.tell(); event != "reload_refused" {
			st.s.fail("reload", "daemon %d was given %s, and says %q: %s", st.no,
				bad[i%len(bad)].name, event, line)
		}
		st.reload("drill", func(l *layout) {
			delete(l.rooms, "drill:")
			delete(l.rooms, "drill2:")
			delete(l.stores, "drill")
			l.rooms[st.own()] = home
		}, calm)
	}
	turn(0)
	turn(1) // this makes the connections that stay
	before := st.least()
	for i := range drills {
		if turn(i); st.ended() {
			return // the fault is reported
		}
	}
	quiet("after a drill of reloads", before.plus(drills/2-1, spare))
	before = st.least()
	for range drills {
		st.refused()
	}
	// The number of connections to stores does not change.
	quiet("after a drill of refused takeovers", before.plus(drills-1, 0))
	st.takeOver("takeover: drill", 1, nil)
	before = st.least()
	for range drills / 2 {
		st.takeOver("takeover: drill", 1, nil)
	}
	quiet("after a drill of takeovers", before.plus(drills/2-1, spare))
}

// refused starts a successor that must be refused, since it does not have one of the daemon's
// stores.
func (st *site) refused() {
	st.s.note("takeover: refused")
	defer st.s.doing("takeover: refused", st, nil)()
	st.write(st.without(st.s.depots[1]).yaml())
	p := st.launch("--takeover")
	if !p.ends(patience) || p.code() != 75 {
		st.s.fail("takeover", "a successor without a store of daemon %d is not refused: %s",
			st.no, tail(p.log))
		p.end(syscall.SIGKILL)
	}
	st.write(st.layout.yaml())
}

// least returns the smallest numbers of open things within some seconds. So things that are about
// to be closed are not counted.
func (st *site) least() gauge {
	least := gauge{1 << 30, 1 << 30, 1 << 30}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if g, err := st.gauge(); err == nil {
			least = least.least(g)
		}
	}
	return least
}
