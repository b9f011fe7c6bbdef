package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

func (m *Main) sessionsCommand() *cobra.Command {
	l := &listing[engine.ViewSession]{
		// The query asks for all sessions, because the names are compared here.
		query: func(string) engine.ViewQuery { return engine.ViewQuery{Limit: engine.MaxViewRows} },
		rows: func(v *engine.View, prefix string) ([]engine.ViewSession, bool) {
			others := func(s engine.ViewSession) bool { return !strings.HasPrefix(s.Client, prefix) }
			return slices.DeleteFunc(v.Sessions, others), v.More.Sessions
		},
		titles: "SESSION\tPID\tUID\tHOLDS\tWAITERS\tSINCE\tHEARD\tEND\tCLIENT",
		cells:  sessionCells,
	}
	cmd := &cobra.Command{
		Use:   "sessions [flags] [PREFIX]",
		Short: "List the clients that are connected",
		Long: fmt.Sprintf(`List the clients that are connected to this host's daemon, the oldest connection first;
with PREFIX only clients whose name begins with it. Of more than %d sessions only the
oldest %d are examined.

HOLDS and WAITERS are the numbers of locks that the client holds and waits for. SINCE
is the time since it connected, and HEARD the time since it last sent something. END says
what tells the daemon that the client has ended: its process, or only its connection.`,
			engine.MaxViewRows, engine.MaxViewRows),
		Example: `  locksidecar sessions
  locksidecar sessions billing/
  locksidecar sessions -o json | jq 'map(.holds) | add'`,
	}
	l.flags(m, cmd)
	return cmd
}

func sessionCells(r *engine.ViewSession) []any {
	end := "connection"
	if r.Watched {
		end = "process"
	}
	return []any{r.Session, top.UnlessZero(r.PID), r.UID, r.Holds, r.Waiters, roundedMS(r.Since),
		roundedMS(r.Heard), end, r.Client}
}
