package faulty

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// command is a line from the runner; docs/contribute/client.md describes all of them.
type command struct {
	ID      int      `json:"id"`
	Do      string   `json:"do"`
	Key     string   `json:"key"`
	Keys    []string `json:"keys"`
	Owner   uint64   `json:"owner"`
	Mode    string   `json:"mode"`
	Wait    int64    `json:"wait_ms"`
	TTL     int64    `json:"ttl_ms"`
	Fixed   bool     `json:"fixed"`
	Permits int      `json:"permits"`
	Keep    int64    `json:"keep_ms"`
	Now     bool     `json:"now"`
	Fence   uint64   `json:"fence,string"`
	Fences  []string `json:"fences"`
	Target  int      `json:"target"`
	Quiet   bool     `json:"quiet"`
}

// answer is the reply to a command.
type answer struct {
	ID     int      `json:"id"`
	OK     bool     `json:"ok,omitempty"`
	Error  string   `json:"error,omitempty"`
	Fence  *uint64  `json:"fence,string,omitempty"`
	Key    string   `json:"key,omitempty"`
	Fences []string `json:"fences,omitempty"`
	Codes  []string `json:"codes,omitempty"`
	Held   *bool    `json:"held,omitempty"`
	PID    int      `json:"pid,omitempty"`
	Ended  *uint64  `json:"ended,omitempty"`
}

type event struct {
	Event  string   `json:"event"`
	Client string   `json:"client,omitempty"`
	Can    []string `json:"can,omitempty"`
	Key    string   `json:"key,omitempty"`
	Owner  uint64   `json:"owner"`
	Fence  uint64   `json:"fence,string"`
	Reason string   `json:"reason,omitempty"`
}

// Run is the adapter: it carries out commands from in until that ends, and answers them on out.
// name is the client's fault, or empty.
func Run(socket, faultName string, can []string, in io.Reader, out io.Writer) {
	var mu sync.Mutex
	lines := json.NewEncoder(out)
	say := func(v any) {
		mu.Lock()
		defer mu.Unlock()
		_ = lines.Encode(v)
	}
	c := &Client{path: socket, fault: fault(faultName), say: say,
		holds: map[name][]*hold{}, giveUp: map[int]func(){}, newest: map[string]uint64{}}
	say(event{Event: "ready", Client: "faulty " + faultName, Can: can})
	scan := bufio.NewScanner(in)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var q command
		if err := json.Unmarshal(scan.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		begun := make(chan struct{})
		go func() {
			a := answer{ID: q.ID}
			if err := c.do(&q, &a, sync.OnceFunc(func() { close(begun) })); err != nil {
				if a.Error = err.Error(); c.fault.is("has-one-error") {
					a.Error = "closed"
				}
			} else {
				a.OK = true
			}
			say(a)
		}()
		select { // so that requests are sent in the order of the commands
		case <-begun:
		case <-time.After(10 * time.Millisecond):
		}
	}
	if c.fault.is("stays-when-its-input-ends") {
		time.Sleep(time.Hour)
	}
}

func (c *Client) do(q *command, a *answer, sent func()) error {
	defer sent()
	n := name{q.Key, q.Owner, q.Fence}
	switch q.Do {
	case "connect":
		_, err := c.connect()
		return err
	case "close":
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.conn == nil {
			return nil
		}
		if c.fault.is("keeps-its-connection-on-close") {
			c.conn.finish(failure("closed"))
		} else {
			c.conn.end(failure("closed"))
		}
	case "acquire":
		h, err := c.acquire(q.Key, terms{q.Owner, q.Mode, q.Wait, q.TTL, q.Fixed, q.Permits,
			q.Keep},
			func(f func()) {
				c.giveUp[q.ID] = f
				sent()
			})
		if err == nil {
			a.Fence = &h.fence
			if c.fault.is("invents-fences") {
				a.Fence = new(uint64)
			}
		}
		return err
	case "cancel":
		c.mu.Lock()
		defer c.mu.Unlock()
		if f := c.giveUp[q.Target]; f != nil {
			f()
		}
	case "held":
		c.mu.Lock()
		defer c.mu.Unlock()
		held := false
		for _, h := range c.holds[n] {
			held = held || h.held()
		}
		a.Held = &held
	case "acquire_any":
		key, fence, err := c.acquireAny(q.Keys, q.Owner, q.Wait, func(f func()) {
			c.giveUp[q.ID] = f
			sent()
		})
		if err == nil {
			a.Key, a.Fence = key, &fence
		}
		return err
	case "acquire_many":
		fences, err := c.acquireMany(q.Keys, q.Owner, q.Wait)
		for _, f := range fences {
			a.Fences = append(a.Fences, fmt.Sprint(f))
		}
		return err
	case "release_many":
		fences := make([]uint64, len(q.Fences))
		for i, f := range q.Fences {
			_, _ = fmt.Sscan(f, &fences[i])
		}
		var err error
		a.Codes, err = c.releaseMany(q.Keys, q.Owner, fences)
		return err
	case "release":
		return c.release(n, q.Quiet, q.Now)
	case "release_detached":
		cn, err := c.connect()
		if err != nil {
			return err
		}
		c.mu.Lock()
		cl, err := cn.send(3, &call{take: func(f *fields) error { f.num(); return f.done() }},
			q.Key, 0, q.Fence, 8)
		c.mu.Unlock()
		if err != nil {
			return err
		}
		return <-cl.done
	case "renew":
		h, err := c.change(n, 4, q.TTL)
		if err == nil {
			a.Fence = &h.fence
		}
		return err
	case "downgrade":
		_, err := c.change(n, 5)
		return err
	case "force_unlock":
		ended, err := c.forceUnlock(q.Key, q.Fence)
		a.Ended = &ended
		return err
	case "fork":
		return c.fork(a)
	default:
		return fmt.Errorf("no command %q", q.Do)
	}
	return nil
}

// fork starts a child that continues to run when this process has ended. The faults imitate a
// careless client after a real fork: the child keeps the socket open, or shuts it down.
func (c *Client) fork(a *answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	child := exec.Command("sleep", "600")
	if c.fault.is("leaves-its-socket-to-a-fork") {
		f, err := c.conn.nc.File()
		if err != nil {
			return err
		}
		defer f.Close()
		child.ExtraFiles = []*os.File{f}
	}
	if c.fault.is("shuts-down-in-a-fork") {
		c.conn.shutdown()
	}
	child.SysProcAttr = &syscall.SysProcAttr{}
	if err := child.Start(); err != nil {
		return err
	}
	held := c.fault.is("holds-in-a-fork")
	a.PID, a.Held = child.Process.Pid, &held
	return nil
}
