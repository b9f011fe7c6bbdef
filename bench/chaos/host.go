package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// host is one daemon with its directory, and the links from it to the store.
type host struct {
	no     int
	bin    string
	dir    string
	run    string   // the directory of its socket
	inside []string // the words before its command, for another network namespace; empty without one
	links  []*faultproxy.Proxy
	conf   string
	turn   int // number of reloads
	*process
}

func (h *host) socket() string { return filepath.Join(h.run, "s") }
func (h *host) log() string    { return filepath.Join(h.dir, "log") }

// configure writes the configuration. Each turn's configuration differs in a way that no client
// notices.
func (h *host) configure() {
	h.turn++
	text := fmt.Sprintf("%smax_handoffs: %d\n", h.conf, 4+h.turn%8)
	if err := os.WriteFile(filepath.Join(h.dir, "conf.yaml"), []byte(text), 0o600); err != nil {
		panic(broken{err})
	}
}

func (h *host) command(more ...string) *exec.Cmd {
	words := append(append([]string{}, h.inside...), h.bin, "serve", "--config",
		filepath.Join(h.dir, "conf.yaml"), "--socket", h.socket(), "--log-format", "json")
	words = append(words, more...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	return cmd
}

// start starts the daemon and waits until it answers. It tries again while the daemon finds no
// store.
func (h *host) start() {
	for end := time.Now().Add(patience); ; {
		p, err := launch(h.command(), h.log())
		if err != nil {
			panic(broken{err})
		}
		h.process = p
		for !p.ended() {
			if c, err := h.dial(); err == nil {
				c.Close()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		if time.Now().After(end) {
			panic(broken{fmt.Errorf("daemon %d does not start: %s", h.no, tail(h.log()))})
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// takeOver lets another process take over from the daemon.
func (h *host) takeOver() {
	p, err := launch(h.command("--takeover"), h.log())
	if err != nil {
		panic(broken{err})
	}
	select {
	case <-h.done:
		h.process = p
	case <-p.done: // the old process continues
	case <-time.After(patience):
		panic(broken{fmt.Errorf("the take-over of daemon %d does not end: %s", h.no, tail(h.log()))})
	}
	if h.ended() {
		panic(broken{fmt.Errorf("nobody serves at daemon %d: %s", h.no, tail(h.log()))})
	}
}

func (h *host) reload() {
	h.configure()
	h.signal(syscall.SIGHUP)
}

func (h *host) dial() (*client.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return client.Dial(ctx, h.socket(), client.Options{Name: "chaos driver"})
}

// grants waits until the daemon grants a key that nothing else uses.
func (h *host) grants(key string, until time.Time) error {
	for {
		err := h.grant(key)
		if err == nil || time.Now().After(until) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (h *host) grant(key string) error {
	c, err := h.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: fmt.Sprint(key, h.no), Owner: 1,
		Wait: time.Second})
	if err != nil {
		return err
	}
	_, err = c.Release(ctx, client.ReleaseArgs{Key: fmt.Sprint(key, h.no), Owner: 1, Fence: g.Fence})
	return err
}

// left returns the holds and waiters that the daemon lists on this host, and the locks that its
// store lists.
func (h *host) left() (rows []string, err error) {
	c, err := h.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for r, err := range c.All(ctx, "") {
		if err != nil {
			return nil, err
		}
		rows = append(rows, fmt.Sprintf("daemon %d: %+v", h.no, r))
	}
	for r, err := range c.AllStored(ctx, "") {
		if e, ok := err.(*client.Error); ok && e.Code == protocol.Unsupported {
			break
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, fmt.Sprintf("the store of daemon %d: %+v", h.no, r))
	}
	return rows, nil
}

// tail returns the end of a file.
func tail(path string) string {
	b, _ := os.ReadFile(path)
	return string(b[max(0, len(b)-4000):])
}
