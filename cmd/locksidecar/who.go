package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// holdersTime bounds the question for a key's holders: the daemon asks the store.
const holdersTime = 3 * time.Second

const whoLong = `Show who holds the lock KEY, on any host. A holder on this host is shown with its
process, its user, what the client calls itself, and its fence. For a holder on another
host, the name of that host is shown: each daemon registers it in the store.

A daemon of a version that does not register is shown as "an unregistered daemon", a
program that locks in the store without locksidecar as "another program". How long a
lock has been held is shown where the store can tell: always on this host, on other
hosts with MySQL, and with ZooKeeper if the holder did not wait.

The exit code is 0 if the lock is held, and 66 if nobody holds it.`

func (m *Main) whoCommand() *cobra.Command {
	var socket, output string
	var semaphore bool
	cmd := &cobra.Command{
		Use:   "who [flags] KEY",
		Short: "Show who holds a lock, on any host",
		Long:  whoLong,
		Example: `  locksidecar who nightly-report
  locksidecar who --semaphore thumbnails
  locksidecar who -o json nightly-report | jq -r '.holders[].host'`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return usage("no key is named")
			case 1:
			default:
				return usage("takes one key, and not %d", len(args))
			}
			if err := protocol.CheckKey(args[0]); err != nil {
				return usage("%w", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.who(cmd.Context(), socket, args[0], semaphore, output == "json")
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&socket)
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "text", "json")
	cmd.Flags().BoolVar(&semaphore, "semaphore", false, "the holders of permits of the semaphore KEY, and not of the lock")
	return cmd
}

// heldKey is what `who` shows, as -o json shows it. Times are milliseconds.
type heldKey struct {
	Key     string            `json:"key"`
	Held    bool              `json:"held"`
	Mode    string            `json:"mode,omitempty"`
	LeftMS  *int64            `json:"left_ms,omitempty"` // until the lease ends unless it is renewed
	Waiters uint64            `json:"waiters"`           // on this host
	Holders []protocol.Holder `json:"holders"`
}

func (m *Main) who(ctx context.Context, socket, key string, semaphore, asJSON bool) error {
	socket, err := m.clientSocket(socket)
	if err != nil {
		return err
	}
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar who"})
	if err != nil {
		return err
	}
	defer c.Close()
	mode := protocol.Exclusive
	if semaphore {
		mode = protocol.Permit
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := c.InspectHolders(ctx, key, mode)
	if err != nil {
		return clientExit(err, socket)
	}
	h := heldKey{Key: key, Held: st.Held != protocol.HeldNot, Waiters: st.Waiters, Holders: st.By}
	if h.Holders == nil {
		h.Holders = []protocol.Holder{} // and not null in JSON
	}
	if h.Held {
		h.Mode = modeName(st.Mode)
		if st.Left >= 0 {
			h.LeftMS = &st.Left
		}
	}
	if asJSON {
		err = writeJSON(m.Stdout, h)
	} else {
		err = written(h.write(m.Stdout))
	}
	if err == nil && !h.Held {
		err = exitWith(exitNotHeld)
	}
	return err
}

// write says it in words: a line for each holder.
func (k *heldKey) write(w io.Writer) error {
	key := terminal.Clean(k.Key)
	if !k.Held {
		_, err := fmt.Fprintf(w, "nobody holds %s\n", key)
		return err
	}
	mode := ""
	if k.Mode != "exclusive" {
		mode = " (" + k.Mode + ")"
	}
	var all []error
	for i := range k.Holders {
		_, err := fmt.Fprintf(w, "%s is held by %s%s\n", key, describe(&k.Holders[i]), mode)
		all = append(all, err)
	}
	if len(k.Holders) == 0 { // the daemon is older than this program
		_, err := fmt.Fprintf(w, "%s is held%s\n", key, mode)
		all = append(all, err)
	}
	return errors.Join(all...)
}

// describe says all that is known of a holder.
func describe(h *protocol.Holder) string {
	s := terminal.Clean(h.String())
	switch {
	case h.Kind == protocol.HolderHere && h.Session == 0:
		s += ", by no client any more: the lease is kept, or on its way back"
	case h.Kind == protocol.HolderHere:
		if h.UID >= 0 {
			s += fmt.Sprintf(" of user %d", h.UID)
		}
		s += fmt.Sprintf(" on this host, session %d", h.Session)
	case h.Kind == protocol.HolderDaemon:
		s += fmt.Sprintf(", daemon %s, process %s there", orDash(terminal.Clean(h.Version)), dashZero(h.Daemon))
	case h.Name != "":
		s += ": " + terminal.Clean(h.Name)
	}
	if h.Held >= 0 {
		s += ", for " + top.Short(h.Held)
	}
	if h.Fence != 0 {
		s += fmt.Sprintf(", fence %d", h.Fence)
	}
	if h.Left >= 0 {
		s += "; its lease ends in " + top.Short(h.Left) + " unless it is renewed"
	}
	return s
}

// heldBy names the holders of a key for a message that says that it is held: " by web-3 for 12s". It
// is empty when nothing is known.
func heldBy(ctx context.Context, c *client.Client, key string, permits bool) string {
	ctx, cancel := context.WithTimeout(ctx, holdersTime)
	defer cancel()
	mode := protocol.Exclusive
	if permits {
		mode = protocol.Permit
	}
	st, err := c.InspectHolders(ctx, key, mode)
	if err != nil || len(st.By) == 0 {
		return ""
	}
	s := " by " + terminal.Clean(protocol.Holders(st.By))
	if len(st.By) == 1 && st.By[0].Held >= 0 {
		s += " for " + top.Short(st.By[0].Held)
	}
	return s
}
