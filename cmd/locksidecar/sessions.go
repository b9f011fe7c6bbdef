package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

func (m *Main) sessionsCommand() *cobra.Command {
	l := &listing[engine.ViewSession]{
		// All that can be had: names are compared here.
		query: func(string) engine.ViewQuery { return engine.ViewQuery{Limit: engine.MaxViewRows} },
		rows: func(v *engine.View, prefix string) ([]engine.ViewSession, bool) {
			others := func(s engine.ViewSession) bool { return !strings.HasPrefix(s.Client, prefix) }
			return slices.DeleteFunc(v.Sessions, others), v.More.Sessions
		},
		table: writeSessions,
	}
	cmd := &cobra.Command{
		Use:   "sessions [flags] [PREFIX]",
		Short: "List the clients that are connected",
		Long: fmt.Sprintf(`List the clients that are connected to this host's daemon, those who have been so
longest first; with PREFIX only those whose name begins so. Of more than %d the
oldest %d are looked at.

HOLDS and WAITERS are how many locks it holds and waits for. SINCE is how long it has
been connected, HEARD how long ago it sent something. END says by what the daemon
notices that the client is gone: by its process, or only by its connection.`, engine.MaxViewRows, engine.MaxViewRows),
		Example: `  locksidecar sessions
  locksidecar sessions billing/
  locksidecar sessions -o json | jq 'map(.holds) | add'`,
	}
	l.flags(m, cmd)
	return cmd
}

func writeSessions(w io.Writer, rows []engine.ViewSession) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tPID\tUID\tHOLDS\tWAITERS\tSINCE\tHEARD\tEND\tCLIENT")
	for i := range rows {
		r := &rows[i]
		end := "connection"
		if r.Watched {
			end = "process"
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", r.Session, dashZero(uint64(max(0, r.PID))), r.UID, r.Holds, r.Waiters,
			roundedMS(r.Since), roundedMS(r.Heard), end, orDash(terminal.Clean(r.Client)))
	}
	return t.Flush()
}
