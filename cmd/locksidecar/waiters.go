package main

import (
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

func (m *Main) waitersCommand() *cobra.Command {
	l := &listing[engine.ViewWaiter]{
		query: func(prefix string) engine.ViewQuery { return engine.ViewQuery{Prefix: prefix} },
		rows: func(v *engine.View, _ string) ([]engine.ViewWaiter, bool) {
			return v.Waiters, v.More.Waiters || v.More.Unseen
		},
		titles: "KEY\tMODE\tPLACE\tWAITED\tLEFT\tPID\tSESSION\tCLIENT\tBEHIND",
		cells:  waiterCells,
	}
	cmd := &cobra.Command{
		Use:   "waiters [flags] [PREFIX]",
		Short: "List the waiters for locks, and the holders that they wait for",
		Long: `List the clients of this host's daemon that wait for a lock, the longest waiter first;
with PREFIX only waiters for keys that begin with it. Waiters on other hosts are not
listed.

PLACE is the place in this host's queue for the key, from 1. LEFT is the rest of the
wait; "-" means without limit. BEHIND is one holder of the lock: its process and client
if it is on this host, else the name of its host; "-" if it is not known, or if the
lock is not held yet.`,
		Example: `  locksidecar waiters
  locksidecar waiters order:
  locksidecar waiters -o json | jq -r '.[] | select(.waited_ms > 60000) | .key'`,
	}
	l.flags(m, cmd)
	cmd.ValidArgsFunction = m.completeKeys(&l.socket)
	return cmd
}

func waiterCells(r *engine.ViewWaiter) []any {
	return []any{r.Key, r.Mode, r.Place, roundedMS(r.Waited), roundedMS(r.Left), top.UnlessZero(r.PID),
		r.Session, r.Client, top.Behind(r)}
}

// roundedMS formats a time for people; -1 becomes "-".
func roundedMS(ms int64) string {
	if ms < 0 {
		return "-"
	}
	return leftOrDash(&ms)
}
