package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// lockRow is one lock as -o json shows it. A fence has 63 bits, which readers
// with double numbers cannot take: it is a string.
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
}

func newLockRow(r *protocol.Row) lockRow {
	l := lockRow{Key: r.Key, Mode: modeName(r.Mode), Holders: r.Holders, Waiters: r.Waiters,
		Session: r.Session, PID: r.PID, Client: r.Client}
	if r.Fence != 0 {
		l.Fence = strconv.FormatUint(r.Fence, 10)
	}
	if r.Left >= 0 {
		l.LeftMS = &r.Left
	}
	return l
}

func modeName(m protocol.Mode) string {
	switch m {
	case protocol.Shared:
		return "shared"
	case protocol.Permit:
		return "permit"
	}
	return "exclusive"
}

func (m *Main) locksCommand() *cobra.Command {
	var socket, output string
	var stored bool
	cmd := &cobra.Command{
		Use:   "locks [flags] [PREFIX]",
		Short: "List the locks that this host holds or waits for",
		Long: `List the locks that clients of this host's daemon hold or wait for, in no
particular order; with PREFIX only those whose keys begin with it. Locks that only
other hosts hold are not listed, unless --store asks the stores themselves. Then every
lock there is listed: with the host that holds it, the holder and the lock as the store
names them, and in column WHOSE "this host", "other host", "left behind" (this host
made it and does not know it any more; it ends by itself) or "foreign" (a plain
locker's). While keys move between two stores, a lock is listed in each of them.
upstream/STORES.md says how to remove one by hand.

LEFT is how long the lease in the store is good for unless it is renewed, as the
daemon does while the lock is held. CLIENT, PID and SESSION are those of one
holder, if there are several.`,
		Example: `  locksidecar locks
  locksidecar locks order:
  locksidecar locks --store order:
  locksidecar locks -o json | jq -r '.[] | select(.waiters > 0) | .key'`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("takes one prefix, and not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, prefix, asJSON := cmd.Context(), strings.Join(args, ""), output == "json"
			if stored {
				return list(ctx, m, socket, asJSON, func(c *client.Client) iter.Seq2[protocol.StoredRow, error] {
					return c.AllStored(ctx, prefix)
				}, newStoredLock, writeStored)
			}
			return list(ctx, m, socket, asJSON, func(c *client.Client) iter.Seq2[protocol.Row, error] {
				return c.All(ctx, prefix)
			}, newLockRow, writeTable)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&socket)
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "table", "json")
	cmd.Flags().BoolVar(&stored, "store", false, "list what the stores know, other hosts' locks and orphaned ones too")
	return cmd
}

// list prints what all of a daemon's rows come to.
func list[R, V any](ctx context.Context, m *Main, socket string, asJSON bool,
	all func(*client.Client) iter.Seq2[R, error], view func(*R) V, table func(io.Writer, []V) error,
) error {
	socket, err := m.clientSocket(socket)
	if err != nil {
		return err
	}
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar locks"})
	if err != nil {
		return err
	}
	defer c.Close()
	views := []V{} // and not null in JSON
	for r, err := range all(c) {
		if err != nil {
			return clientExit(err, socket)
		}
		views = append(views, view(&r))
	}
	if asJSON {
		return writeJSON(m.Stdout, views)
	}
	return written(table(m.Stdout, views))
}

func writeTable(w io.Writer, rows []lockRow) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tMODE\tHOLDERS\tWAITERS\tFENCE\tLEFT\tPID\tSESSION\tCLIENT")
	for i := range rows {
		r := &rows[i]
		mode := r.Mode
		if r.Holders == 0 {
			mode = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", terminal.Clean(r.Key), mode, r.Holders, r.Waiters,
			orDash(r.Fence), leftOrDash(r.LeftMS), dashZero(r.PID), dashZero(r.Session), orDash(terminal.Clean(r.Client)))
	}
	return t.Flush()
}

func leftOrDash(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func dashZero(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}
