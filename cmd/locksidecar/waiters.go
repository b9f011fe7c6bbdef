package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

func (m *Main) waitersCommand() *cobra.Command {
	l := &listing[engine.ViewWaiter]{
		query: func(prefix string) engine.ViewQuery { return engine.ViewQuery{Prefix: prefix} },
		rows: func(v *engine.View, _ string) ([]engine.ViewWaiter, bool) {
			return v.Waiters, v.More.Waiters || v.More.Unseen
		},
		table: writeWaiters,
	}
	cmd := &cobra.Command{
		Use:   "waiters [flags] [PREFIX]",
		Short: "List who waits for a lock, and behind whom",
		Long: `List the clients of this host's daemon that wait for a lock, those who have waited
longest first; with PREFIX only those who wait for keys that begin so. Those who wait
at other hosts are not listed.

PLACE is the place in this host's queue for the key, from 1. LEFT is how long they
will still wait, "-" being as long as it takes. BEHIND is one holder of the lock: its
process and client if it is on this host, else the name of its host; "-" if it is not
known, or if nobody holds the lock yet.`,
		Example: `  locksidecar waiters
  locksidecar waiters order:
  locksidecar waiters -o json | jq -r '.[] | select(.waited_ms > 60000) | .key'`,
	}
	l.flags(m, cmd)
	cmd.ValidArgsFunction = m.completeKeys(&l.socket)
	return cmd
}

func writeWaiters(w io.Writer, rows []engine.ViewWaiter) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tMODE\tPLACE\tWAITED\tLEFT\tPID\tSESSION\tCLIENT\tBEHIND")
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\n", terminal.Clean(r.Key), r.Mode, r.Place, roundedMS(r.Waited), roundedMS(r.Left),
			dashZero(uint64(max(0, r.PID))), r.Session, orDash(terminal.Clean(r.Client)), terminal.Clean(top.Behind(r)))
	}
	return t.Flush()
}

// roundedMS is a time for people; -1 is "-".
func roundedMS(ms int64) string {
	if ms < 0 {
		return "-"
	}
	return leftOrDash(&ms)
}
