package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Crew is a set of workers that can run several fleets one after the other. It is for programs that
// take long to start and to warm up. Only one goroutine may use it.
type Crew struct {
	workers []*worker
}

// Run makes the crew run f. The first call starts the processes. After an error the crew has ended.
func (c *Crew) Run(f Fleet) (*Outcome, error) {
	out, err := c.run(f)
	if err != nil {
		c.Stop()
	}
	return out, err
}

func (c *Crew) run(f Fleet) (*Outcome, error) {
	out := &Outcome{}
	var err error
	if out.PingPong, err = PingPong(f.Window / 5); err != nil {
		return nil, err
	}
	if err := c.order(f); err != nil {
		return nil, err
	}
	// This makes Decode fail.
	late := time.AfterFunc(f.Warm+f.Window+max(f.StartUp, patience)+patience, func() {
		for _, w := range c.workers {
			w.cmd.Process.Kill()
		}
	})
	defer late.Stop()
	for _, w := range c.workers {
		var ready string
		if err := w.in.Decode(&ready); err != nil {
			return nil, w.failed("get ready", err)
		}
	}
	start := time.Now().Add(f.Warm)
	for _, w := range c.workers {
		if err := w.out.Encode(start); err != nil {
			return nil, w.failed("start", err)
		}
	}
	if err := f.observe(start, out); err != nil {
		return nil, err
	}
	for _, w := range c.workers {
		var r report
		if err := w.in.Decode(&r); err != nil {
			return nil, w.failed("report", err)
		}
		out.tally.merge(&r.Tally)
		out.PerCaller = append(out.PerCaller, r.PerCaller...)
		out.ClientCPU += r.CPU
		out.Window += r.Window / time.Duration(f.Procs)
	}
	return out, nil
}

// order sends each worker its specification, and starts missing workers.
func (c *Crew) order(f Fleet) error {
	args, err := json.Marshal(f.Args)
	if err != nil {
		return err
	}
	for proc, w := range c.workers {
		if err := w.out.Encode(Spec{f.Load, args, proc, f.Warm, f.Window}); err != nil {
			return w.failed("take its orders", err)
		}
	}
	for proc := len(c.workers); proc < f.Procs; proc++ {
		w, err := f.start(proc)
		if err != nil {
			return err
		}
		c.workers = append(c.workers, w)
	}
	return nil
}

// Stop ends the workers.
func (c *Crew) Stop() {
	for _, w := range c.workers {
		w.Stop()
	}
	c.workers = nil
}

// PIDs returns the process ids of the workers.
func (c *Crew) PIDs() (pids []int) {
	for _, w := range c.workers {
		pids = append(pids, w.PID())
	}
	return pids
}

// Connections returns how many TCP connections the processes have to the port of addr.
func Connections(addr string, pids ...int) (n int) {
	_, port, _ := strings.Cut(addr, ":")
	number, _ := strconv.Atoi(port)
	sockets := map[string]bool{}
	// the second table has Java's connections
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line) // sl local remote st … inode
			if len(f) < 10 || f[3] != "01" {
				continue
			}
			_, remote, _ := strings.Cut(f[2], ":")
			if at, err := strconv.ParseInt(remote, 16, 32); err == nil && int(at) == number {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	for _, pid := range pids {
		fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && sockets[to] {
				n++
			}
		}
	}
	return n
}
