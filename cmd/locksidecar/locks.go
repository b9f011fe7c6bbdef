package main

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/protocol"
)

// lockRow is one lock in the form of -o json. The fence is a string, because it has 63 bits, and
// many programs read numbers as doubles.
type lockRow struct {
	Key     string `json:"key"`
	Mode    string `json:"mode"`
	Holders uint64 `json:"holders"`
	Waiters uint64 `json:"waiters"`
	Fence   string `json:"fence,omitempty"`
	LeftMS  *int64 `json:"left_ms,omitempty"`
	Session uint64 `json:"session,omitempty"`
	PID     uint64 `json:"pid,omitempty"`
	Client  string `json:"client,omitempty"`
	// Detached means that no session has the hold, which ends in LeftMS. UID is its user's.
	Detached bool   `json:"detached,omitempty"`
	UID      *int64 `json:"uid,omitempty"`
}

func newLockRow(r *protocol.Row) lockRow {
	l := lockRow{Key: r.Key, Mode: r.Mode.String(), Holders: r.Holders, Waiters: r.Waiters,
		Session: r.Session, PID: r.PID, Client: r.Client}
	if r.Fence != 0 {
		l.Fence = strconv.FormatUint(r.Fence, 10)
	}
	if r.Left >= 0 {
		l.LeftMS = &r.Left
	}
	if l.Detached = r.Detached; r.Detached {
		l.UID = &r.UID
	}
	return l
}

func (m *Main) locksCommand() *cobra.Command {
	var socket, output string
	var stored bool
	cmd := &cobra.Command{
		Use:   "locks [flags] [PREFIX]",
		Short: "List the locks that this host holds or waits for",
		Long: `List the locks that clients of this host's daemon hold or wait for, in no
particular order; with PREFIX only those whose keys begin with it. Locks that only
other hosts hold are not listed.

With --store all locks in the stores are listed, each with its host and with the names
of the holder and of the lock in the store. Column WHOSE has one of these:

  this host     the daemon of this host has it
  other host    the daemon of another host has it
  left behind   this host made it and no longer knows it; it ends by itself
  foreign       a program without locksidecar has it

While keys move between two stores, a lock is listed in each of them. The embedded store
lists no locks.
docs/operate/stores.md describes how to remove one by hand.

LEFT is the time until the lease in the store ends unless it is renewed. The daemon
renews it while the lock is held. If there are several holders, CLIENT, PID and SESSION
describe one of them. A detached hold (see lock --keep) has none of these, and LEFT is
the time until it ends.`,
		Example: `  locksidecar locks
  locksidecar locks order:
  locksidecar locks --store order:
  locksidecar locks -o json | jq -r '.[] | select(.waiters > 0) | .key'`,
		DisableFlagsInUseLine: true,
		Args:                  onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, socket, err := m.connect(cmd.Context(), socket, "locks")
			if err != nil {
				return err
			}
			defer c.Close()
			prefix := strings.Join(args, "")
			if stored {
				rows, err := collect(c.AllStored(cmd.Context(), prefix), newStoredLock)
				if err != nil {
					return clientExit(err, socket)
				}
				return printRows(m, output, rows, storedTitles, storedCells)
			}
			rows, err := collect(c.All(cmd.Context(), prefix), newLockRow)
			if err != nil {
				return clientExit(err, socket)
			}
			return printRows(m, output, rows, lockTitles, lockCells)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&socket)
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "table", "json")
	cmd.Flags().BoolVar(&stored, "store", false,
		"list all locks in the stores, including other hosts' and orphaned ones")
	return cmd
}

// collect returns all rows of a daemon, in the form in which they are printed.
func collect[R, V any](all iter.Seq2[R, error], view func(*R) V) (views []V, err error) {
	for r, err := range all {
		if err != nil {
			return nil, err
		}
		views = append(views, view(&r))
	}
	return views, nil
}

const lockTitles = "KEY\tMODE\tHOLDERS\tWAITERS\tFENCE\tLEFT\tPID\tSESSION\tCLIENT"

func lockCells(r *lockRow) []any {
	mode := r.Mode
	if r.Holders == 0 {
		mode = ""
	}
	client := r.Client
	if r.Detached {
		client = fmt.Sprintf("(detached, user %d)", *r.UID)
	}
	return []any{r.Key, mode, r.Holders, r.Waiters, r.Fence, leftOrDash(r.LeftMS),
		top.UnlessZero(r.PID), top.UnlessZero(r.Session), client}
}

func leftOrDash(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}
