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

// holdersTime bounds how long lock waits for the names of a key's holders. The daemon asks the
// store for them.
const holdersTime = 3 * time.Second

const whoLong = `Show the holders of the lock KEY, on any host. A holder on this host is shown with its
process, user, client name and fence. A holder on another host is shown with the name
of that host, which its daemon has registered in the store.

A daemon of an older version, which does not register, is shown as "an unregistered
daemon", and a program that locks in the store without locksidecar as "another program".
For a holder on this host, "acquired" means the grant. For another host, it means when
that host got the lock from the store, if that is known.

The exit code is 0 if the lock is held, and 66 if nobody holds it.`

func (m *Main) whoCommand() *cobra.Command {
	var socket, output string
	var semaphore bool
	cmd := &cobra.Command{
		Use:   "who [flags] KEY",
		Short: "Show the holder of a lock, on any host",
		Long:  whoLong,
		Example: `  locksidecar who nightly-report
  locksidecar who --semaphore thumbnails
  locksidecar who -o json nightly-report | jq -r '.holders[].host'`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			_, err := oneKey(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.who(cmd.Context(), socket, args[0], semaphore, output)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&socket)
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "text", "json")
	cmd.Flags().BoolVar(&semaphore, "semaphore", false,
		"show the holders of permits of the semaphore KEY, not of the lock")
	return cmd
}

// heldKey is the result of `who`, in the form of -o json. Times are in milliseconds.
type heldKey struct {
	Key  string `json:"key"`
	Held bool   `json:"held"`
	Mode string `json:"mode,omitempty"`
	// LeftMS is the time until the lease ends unless it is renewed.
	LeftMS  *int64            `json:"left_ms,omitempty"`
	Waiters uint64            `json:"waiters"` // on this host
	Holders []protocol.Holder `json:"holders"`
}

func (m *Main) who(ctx context.Context, socket, key string, semaphore bool, output string) error {
	c, socket, err := m.connect(ctx, socket, "who")
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := c.InspectHolders(ctx, key, inspected(semaphore))
	if err != nil {
		return clientExit(err, socket)
	}
	h := heldKey{Key: key, Held: st.Held != protocol.HeldNot, Waiters: st.Waiters, Holders: st.By}
	if h.Holders == nil {
		h.Holders = []protocol.Holder{} // nil would be null in JSON
	}
	if h.Held {
		h.Mode = st.Mode.String()
		if st.Left >= 0 {
			h.LeftMS = &st.Left
		}
	}
	err = m.printed(output, h, h.write)
	if !h.Held && output != "json" {
		hintOther(ctx, c, m.Stderr, key, semaphore)
	}
	if err == nil && !h.Held {
		err = exitWith(exitNotHeld)
	}
	return err
}

// write writes the result as text, with a line for each holder.
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
	if len(k.Holders) == 0 { // an earlier process kept it, or the daemon is older than this program
		left := ""
		if k.LeftMS != nil {
			left = "; its lease ends in " + top.Short(*k.LeftMS) + " unless it is renewed"
		}
		_, err := fmt.Fprintf(w, "%s is held%s%s\n", key, mode, left)
		all = append(all, err)
	}
	return errors.Join(all...)
}

// hintOther prints on w that permits of the key's semaphore are held though its lock is free, or
// the reverse. It prints nothing if that is not known: the store may have no semaphores.
func hintOther(ctx context.Context, c *client.Client, w io.Writer, key string, semaphore bool) {
	held, flag := "permits of the semaphore %s are held", "--semaphore "
	if semaphore {
		held, flag = "the lock %s is held", ""
	}
	if st, err := c.InspectHolders(ctx, key, inspected(!semaphore)); err == nil &&
		st.Held != protocol.HeldNot {
		key = terminal.Clean(key)
		fmt.Fprintf(w, "locksidecar who: "+held+"; 'locksidecar who %s%s' names the holders\n",
			key, flag, key)
	}
}

// inspected returns the mode in which to inspect a key: as a semaphore or as a lock.
func inspected(semaphore bool) protocol.Mode {
	if semaphore {
		return protocol.Permit
	}
	return protocol.Exclusive
}

// describe returns everything known about a holder as text.
func describe(h *protocol.Holder) string {
	s := terminal.Clean(h.String())
	switch {
	case h.Kind == protocol.HolderHere && h.Session == 0 && h.Fence != 0:
		s += " on this host, without a session"
	case h.Kind == protocol.HolderHere && h.Session == 0:
		s += ", but by none of its clients: the lease is kept for the next one, or is being released"
	case h.Kind == protocol.HolderHere:
		if h.UID >= 0 {
			s += fmt.Sprintf(" of user %d", h.UID)
		}
		s += fmt.Sprintf(" on this host, session %d", h.Session)
	case h.Kind == protocol.HolderDaemon:
		s += fmt.Sprintf(", daemon %s, process %s there",
			top.OrDash(terminal.Clean(h.Version)), top.UnlessZero(h.Daemon))
	case h.Name != "":
		s += ": " + terminal.Clean(h.Name)
	}
	if h.Held >= 0 {
		s += ", acquired " + top.Short(h.Held) + " ago"
	}
	if h.Fence != 0 {
		s += fmt.Sprintf(", fence %d", h.Fence)
	}
	switch {
	case h.Left >= 0 && h.Kind == protocol.HolderHere && h.Session == 0 && h.Fence != 0:
		s += "; it ends by itself in " + top.Short(h.Left)
	case h.Left >= 0:
		s += "; its lease ends in " + top.Short(h.Left) + " unless it is renewed"
	}
	return s
}

// heldBy names the holders of a key for a message, as in " by web-3, acquired 12s ago". The
// result is empty if no holder is known.
func heldBy(ctx context.Context, c *client.Client, key string, permits bool) string {
	ctx, cancel := context.WithTimeout(ctx, holdersTime)
	defer cancel()
	st, err := c.InspectHolders(ctx, key, inspected(permits))
	if err != nil || len(st.By) == 0 {
		return ""
	}
	s := " by " + terminal.Clean(protocol.Holders(st.By))
	if len(st.By) == 1 && st.By[0].Held >= 0 {
		s += ", acquired " + top.Short(st.By[0].Held) + " ago"
	}
	return s
}
