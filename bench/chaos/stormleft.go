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
	"time"
)

// admin is a client of the daemon's admin socket.
func (h *host) admin() *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.socket()+".admin")
	}}}
}

type viewHold struct {
	Key  string `json:"key"`
	Held int64  `json:"held_ms"`
}

// holds are the locks of the keys that begin with prefix that are held here, the oldest first.
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

// gauge is what a process has open.
type gauge struct{ descriptors, goroutines int }

func (h *host) gauge() (g gauge, err error) {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	if err != nil {
		return g, err
	}
	g.descriptors = len(fds)
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

// measureFirst notes what daemons have open before any client came.
func (s *storm) measureFirst() {
	for _, st := range s.sites {
		g, err := st.gauge()
		if err != nil {
			panic(broken{err})
		}
		st.first = g
	}
}

const (
	drills    = 8  // reloads of each kind in a drill
	poolSpare = 60 // descriptors and goroutines that connections to stores may take more, once there was load
)

// leakDrill reloads and takes over again and again while nothing else happens: what is open afterwards is what was open
// before, within less than one for each turn. And over the whole storm it has not grown by more than connections need.
func (st *site) leakDrill() {
	quiet := func(what string, most gauge) gauge {
		var g gauge
		var err error
		if !st.s.until(patience, func() bool {
			g, err = st.gauge()
			return err == nil && g.descriptors <= most.descriptors && g.goroutines <= most.goroutines
		}) {
			st.s.fail("leak", "daemon %d has %+v open %s, and had at most %+v to have (%v)", st.no, g, what, most, err)
		}
		return g
	}
	quiet("after the storm", gauge{st.first.descriptors + poolSpare, st.first.goroutines + 3*poolSpare})
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
			st.s.fail("reload", "daemon %d was given %s, and says %q: %s", st.no, bad[i%len(bad)].name, event, line)
		}
		st.reload("drill", func(l *layout) {
			delete(l.rooms, "drill:")
			delete(l.rooms, "drill2:")
			delete(l.stores, "drill")
			l.rooms[st.own()] = home
		}, calm)
	}
	turn(0)
	turn(1) // connections that stay are made
	before := st.least()
	for i := range drills {
		turn(i)
	}
	quiet("after a drill of reloads", gauge{before.descriptors + drills/2, before.goroutines + drills/2})
	for range drills / 2 {
		st.takeOver("takeover: drill", 1, nil)
	}
	quiet("after a drill of takeovers", gauge{before.descriptors + drills/2, before.goroutines + drills/2})
}

// least is what the daemon has open at the least within some seconds: what is on its way to an end is not counted.
func (st *site) least() gauge {
	least := gauge{1 << 30, 1 << 30}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if g, err := st.gauge(); err == nil {
			least = gauge{min(least.descriptors, g.descriptors), min(least.goroutines, g.goroutines)}
		}
	}
	return least
}
