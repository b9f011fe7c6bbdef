package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// unlockOptions has the values of the command line.
type unlockOptions struct {
	socket, output string
	force          bool
	semaphore      bool
	fence          uint64 // 0 if it is not given
	key            string
}

const unlockLong = `With --force, take the lock KEY away from all its holders on this host. They are told
that it is lost, and the log names the user of this command. Only root, the daemon's own
user and the configured operators may do that. --fence limits it to the hold with that
fence.

It is a last resort. A holder that does not notice the loss continues its work while
the next holder begins; then only a fence separates them. It is better to end the
holder's process ('locksidecar locks KEY' shows its PID), which releases all its locks at
once. A lock whose holder has ended becomes free by itself.

The key becomes free when the holder has answered or ended, or when the validity that was
stated to it is over. The longest time until then is printed, if it is known.

With --fence and without --force, release a detached hold: the command of 'lock --keep'
has ended, and the time of --keep is not over. 'locksidecar who KEY' shows the fence.
Only the user of that command and root may do that.

Without --semaphore, KEY names a lock. To take away a lock that another host holds, run
this command there; 'locksidecar who KEY' names that host. docs/operate/stores.md
describes how to remove a lock that is left behind.`

func (m *Main) unlockCommand() *cobra.Command {
	o := &unlockOptions{}
	cmd := &cobra.Command{
		Use:   "unlock {--force | --fence F} [flags] KEY",
		Short: "Take a lock away from its holder by force, or release a detached hold",
		Long:  unlockLong,
		Example: `  locksidecar unlock --force nightly-report
  # only if the holder has not changed
  locksidecar unlock --force --fence 1838349100376782848 nightly-report
  # the report is to run again, although its --keep is not over
  locksidecar unlock --fence 1838349100376782848 nightly-report
  locksidecar unlock --force -o json nightly-report | jq .free_in_ms`,
		DisableFlagsInUseLine: true,
		Args:                  o.args,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.unlock(cmd.Context(), o)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&o.socket)
	socketFlag(cmd, &o.socket)
	outputFlag(cmd, &o.output, "text", "json")
	f := cmd.Flags()
	f.BoolVar(&o.force, "force", false, "take the lock away from its holders")
	f.BoolVar(&o.semaphore, "semaphore", false, "unlock the semaphore KEY, not the lock")
	f.Var(&parsedFlag[uint64]{&o.fence, "fence", parseFence}, "fence",
		"only the hold with this `fence`")
	return cmd
}

func (o *unlockOptions) args(_ *cobra.Command, args []string) (err error) {
	if o.key, err = oneKey(args); err != nil {
		return err
	}
	if !o.force && o.fence == 0 {
		return exit(exitUsage, `nothing was done.
This takes %[1]s away from a process that may be relying on it, and grants it to the
next. It is better to end that process ('locksidecar locks %[1]s' shows its PID), which
releases all its locks, or to wait. If it is necessary:
  locksidecar unlock --force %[1]s
A detached hold: locksidecar unlock --fence F %[1]s`, terminal.Clean(o.key))
	}
	return nil
}

func (m *Main) unlock(ctx context.Context, o *unlockOptions) error {
	socket, err := m.clientSocket(o.socket)
	if err != nil {
		return err
	}
	if !o.force {
		return m.unlockDetached(ctx, o, socket)
	}
	if errors.Is(syscall.Access(admin.Socket(socket), writable), fs.ErrPermission) {
		return m.unlockAsClient(ctx, o, socket)
	}
	form := url.Values{"key": {o.key}, "mode": {"lock"}}
	if o.semaphore {
		form.Set("mode", "semaphore")
	}
	if o.fence > 0 {
		form.Set("fence", strconv.FormatUint(o.fence, 10))
	}
	c := newAdminClient(socket)
	defer c.Close()
	var u admin.Unlocked
	if err := c.call(ctx, http.MethodPost, "/unlock", form, &u); err != nil {
		if refused, ok := errors.AsType[*exitError](err); ok && refused.code == exitNotHeld {
			return exit(exitNotHeld, "%w; %s", err, o.advice(ctx, socket))
		}
		return err
	}
	return m.printed(o.output, u, func(w io.Writer) error { return o.write(w, &u) })
}

// unlockAsClient unlocks by force over the socket for locks: the user may be an operator, and
// cannot open the admin socket. The daemon returns only the number of holds.
func (m *Main) unlockAsClient(ctx context.Context, o *unlockOptions, socket string) error {
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar unlock"})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ended, err := c.ForceUnlock(ctx, o.key, inspected(o.semaphore), o.fence)
	if err != nil {
		return clientExit(err, socket)
	}
	if ended == 0 {
		return exit(exitNotHeld, "no hold of %s on this host was ended; %s", terminal.Clean(o.key),
			o.advice(ctx, socket))
	}
	u := admin.Unlocked{Released: int(ended), FreeIn: -1, Holds: []engine.ViewHold{}}
	return m.printed(o.output, u, func(w io.Writer) error { return o.write(w, &u) })
}

// unlockDetached releases a detached hold.
func (m *Main) unlockDetached(ctx context.Context, o *unlockOptions, socket string) error {
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar unlock"})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	key := terminal.Clean(o.key)
	switch err := c.ReleaseDetached(ctx, o.key, o.fence); {
	case errors.Is(err, client.ErrNotHeld):
		return exit(exitNotHeld, "%s has no detached hold with fence %d on this host; "+
			"'locksidecar who %s' names its holder", key, o.fence, o.named(o.semaphore))
	case err != nil:
		return clientExit(err, socket)
	}
	u := admin.Unlocked{Released: 1, Holds: []engine.ViewHold{}}
	return m.printed(o.output, u, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s: the detached hold is released\n", key)
		return err
	})
}

// advice says what to do if the key is not held on this host. A semaphore of the same name may have
// been meant instead of the lock, or the reverse. Or the holder is on another host.
func (o *unlockOptions) advice(ctx context.Context, socket string) string {
	elsewhere := fmt.Sprintf("'locksidecar who %s' names a holder on another host",
		o.named(o.semaphore))
	c, err := dial(ctx, socket, client.Options{Name: "locksidecar unlock"})
	if err != nil {
		return elsewhere
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, holdersTime)
	defer cancel()
	if st, err := c.InspectHolders(ctx, o.key, inspected(o.semaphore)); err != nil ||
		st.Held == protocol.HeldThere {
		return elsewhere
	}
	st, err := c.InspectHolders(ctx, o.key, inspected(!o.semaphore))
	if err != nil || st.Held == protocol.HeldNot {
		return elsewhere
	}
	what := "there is a semaphore of this name, and permits of it are held"
	if o.semaphore {
		what = "there is a lock of this name, and it is held"
	}
	if st.Held == protocol.HeldThere {
		return fmt.Sprintf("%s on another host: 'locksidecar who %s' names it",
			what, o.named(!o.semaphore))
	}
	fence := ""
	if o.fence > 0 {
		fence = fmt.Sprintf("--fence %d ", o.fence)
	}
	return fmt.Sprintf("%s on this host: 'locksidecar unlock --force %s%s' takes away what is held",
		what, fence, o.named(!o.semaphore))
}

// named returns the arguments that name the key to a command, as a semaphore or as a lock.
func (o *unlockOptions) named(semaphore bool) string {
	if semaphore {
		return "--semaphore " + terminal.Clean(o.key)
	}
	return terminal.Clean(o.key)
}

// write prints the holders whose holds were ended, and when the key is free.
func (o *unlockOptions) write(w io.Writer, u *admin.Unlocked) error {
	key := terminal.Clean(o.key)
	var all []error
	say := func(format string, a ...any) {
		_, err := fmt.Fprintf(w, format+"\n", a...)
		all = append(all, err)
	}
	for i := range u.Holds {
		h := &u.Holds[i]
		if h.Detached {
			say("%s: the detached hold of user %d is ended, fence %d", key, h.UID, h.Fence)
			continue
		}
		say("%s: taken from process %s, %s (session %d), which had it for %s, fence %s",
			key, top.UnlessZero(h.PID),
			top.OrDash(terminal.Clean(h.Client)), h.Session, roundedMS(h.Held), top.UnlessZero(h.Fence))
	}
	switch more := u.Released - len(u.Holds); {
	case more > 0 && len(u.Holds) > 0:
		say("and from %d more", more)
	case more > 0:
		say("%s: taken away; number of holds: %d", key, more)
	}
	switch {
	case u.FreeIn < 0:
		say("%s is free when its holders have released it or ended, or when their validity is over", key)
	case u.FreeIn > 0 && u.Released == 0:
		say("%s was unlocked before, and is free in at most %s", key, top.Short(u.FreeIn))
	case u.FreeIn > 0:
		say("%s is free when its holder has released it or ended, in at most %s",
			key, top.Short(u.FreeIn))
	default:
		say("%s is free", key)
	}
	return errors.Join(all...)
}

func parseFence(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 {
		return 0, errors.New("is not a fence, a positive number")
	}
	return n, nil
}
