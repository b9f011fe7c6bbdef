package main

import (
	"slices"
	"syscall"
	"testing"
)

// A lock that is used again and again on one host lingers there: its fences have the same base. The
// host releases it when another host tries to acquire it, or waits for it.
func TestLocksLinger(t *testing.T) {
	for _, c := range everyStore {
		if slices.Contains([]string{"redlock", "redis-cluster", "redis-sentinel"}, c.name) {
			continue // Redlock cannot linger, and the others are like redis
		}
		t.Run(c.name, func(t *testing.T) {
			url, _ := c.start(t)
			first := newHost(t, "--upstream", url, "--ttl", "20s", "--linger", "2s")
			second := newHost(t, "--upstream", url, "--ttl", "20s", "--linger", "2s")
			use := func(h *host) int {
				p := h.lock(nil, "echo $LOCKSIDECAR_FENCE")
				defer p.ends(0)
				return p.number()
			}
			stays := func(h *host) {
				t.Helper()
				last := use(h)
				eventually(t, "it stays", func() bool {
					before := last
					last = use(h)
					return last == before+1
				})
			}
			stays(first)
			eventually(t, "a try gets it", func() bool {
				p := second.lock([]string{"-n", "-E", "9"}, "exit 0")
				p.ends(-1)
				return p.cmd.ProcessState.ExitCode() == 0
			})
			use(first)
			stays(second)
			use(first)
			for _, h := range []*host{first, second} {
				h.daemon.signal(syscall.SIGTERM)
				h.daemon.ends(0)
			}
		})
	}
}
