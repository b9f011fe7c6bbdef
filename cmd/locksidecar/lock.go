package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// What becomes of the command when its lock is lost.
const (
	lostTerm = "term"
	lostKill = "kill"
	lostWarn = "warn"
)

// lockOptions is what the command line says.
type lockOptions struct {
	socket    string
	noWait    bool
	wait      durationFlag
	shared    bool
	permits   countFlag
	ttl       durationFlag
	conflict  codeFlag
	killAfter durationFlag
	onLost    string
	quiet     bool

	keys    []string
	command []string
}

const lockLong = `Acquire the lock KEY, run CMD, and release the lock when CMD has ended. Of several
KEYs all are acquired or none, in an order in which no two callers wait for each
other; if one is lost all are.

With -c it acquires one of N permits of the semaphore KEY instead: up to N such
commands run at once, on all hosts together. Everybody has to say the same N. A semaphore
and a lock of the same name have nothing to do with each other.

Without -n or -w it waits for the lock as long as it takes. CMD is run as it is,
without a shell, with this command's input and output, in a process group of its
own; that group gets the terminal when there is one. SIGTERM, SIGINT, SIGHUP and
the like are forwarded to the group. SIGUSR2 is ignored: it is meant for the daemon.
CMD finds in its environment

  LOCKSIDECAR_KEY      the key; of several, each on a line
  LOCKSIDECAR_FENCE    the fencing token: a number, larger for each later holder.
                       Pass it to what the lock protects, so that it can refuse a
                       holder that is late. Of several keys each on a line
  LOCKSIDECAR_SOCKET   the daemon's socket
  TRACEPARENT          as it is in this command's own: a daemon that exports traces
                       puts the wait for the lock there

The lock is released as soon as CMD itself has ended, even if processes that it
started live on. Should the lock be lost while CMD runs (the store or the daemon
failed for too long, or an operator took it away), --on-lost says what happens:

  term   SIGTERM to the whole process group, SIGKILL after --kill-after; exit 79
  kill   SIGKILL at once; exit 79
  warn   only a message; CMD goes on without the lock

Killed with SIGKILL, this command takes CMD with it (on Linux), though not what
CMD has started.

` + exitCodesText

const lockExample = `  # one at a time on all hosts, waiting for its turn
  locksidecar lock nightly-report -- ./report.sh --all

  # skip it if another one is running
  locksidecar lock -n cache-refresh -- ./refresh.sh || [ $? -eq 75 ]

  # wait for at most a minute; readers share the lock
  locksidecar lock -w 1m -s catalogue -- ./export.sh

  # at most four of them at a time, on all hosts together
  locksidecar lock -c 4 thumbnails -- ./render.sh

  # two locks at once
  locksidecar lock account/17 account/42 -- ./transfer.sh 17 42

  # a shell is there if you ask for one
  locksidecar lock deploy -- sh -c 'echo "fence $LOCKSIDECAR_FENCE"; make deploy'`

func (m *Main) lockCommand() *cobra.Command {
	o := &lockOptions{conflict: exitTryAgain, killAfter: durationFlag(5 * time.Second), wait: durationFlag(client.Forever)}
	cmd := &cobra.Command{
		Use:     "lock [flags] KEY… -- CMD [ARG…]",
		Short:   "Run a command under a lock",
		Long:    lockLong,
		Example: lockExample,
		// What stands behind -- is the command's, and --help in front of it ours.
		DisableFlagsInUseLine: true,
		Args:                  o.args,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.lock(cmd.Context(), o)
		},
	}
	cmd.ValidArgsFunction = m.completeKeys(&o.socket)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		err = suggested(cmd, err)
		if slices.Contains(m.Args, "--") {
			return usage("%w", err)
		}
		return usage("%w (put -- in front of the command)", err)
	})
	f := cmd.Flags()
	f.BoolVarP(&o.noWait, "no-wait", "n", false, "do not wait: give up at once when the lock is taken")
	f.VarP(&o.wait, "wait", "w", "wait for the lock at most this `long`, as in 30s (default: as long as it takes)")
	f.Lookup("wait").DefValue = "" // without bound
	f.BoolVarP(&o.shared, "shared", "s", false, "a shared lock: others may share it, none may have it exclusively")
	f.VarP(&o.permits, "permits", "c", "a permit of a semaphore that has `N` of them, instead of a lock")
	f.Lookup("permits").DefValue = ""
	f.Var(&o.ttl, "ttl", "`length` of the lease, which is renewed while CMD runs; after a crash of this whole host the lock stays taken so long (default: the daemon's)")
	f.Lookup("ttl").DefValue = ""
	f.VarP(&o.conflict, "conflict-exit-code", "E", "exit `code` when the lock was not acquired")
	f.Var(&o.killAfter, "kill-after", "`time` between SIGTERM and SIGKILL when the lock is lost")
	f.StringVar(&o.onLost, "on-lost", lostTerm, "`what` happens to CMD when the lock is lost: term, kill or warn")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]string{lostTerm, lostKill, lostWarn}, cobra.ShellCompDirectiveNoFileComp))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing about a lock that was not acquired, or was lost")
	socketFlag(cmd, &o.socket)
	return cmd
}

// args takes the key and the command, and looks for what contradicts itself.
func (o *lockOptions) args(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return usage("put -- between the key and the command: locksidecar lock %s -- %s", args[0], strings.Join(args[1:], " "))
	case len(args) == 0 || dash == 0:
		return usage("no key is named")
	case dash < 0 || len(args) == dash:
		return usage("no command is named: locksidecar lock %s -- CMD", strings.Join(args, " "))
	case dash > protocol.MaxMany:
		return usage("%d keys: at most %d can be had at once", dash, protocol.MaxMany)
	}
	keys := args[:dash]
	for i, k := range keys {
		if err := protocol.CheckKey(k); err != nil {
			return usage("%w", err)
		}
		if slices.Contains(keys[:i], k) {
			return usage("the key %s is named twice", k)
		}
	}
	if o.noWait && cmd.Flags().Changed("wait") {
		return usage("-n and -w cannot both be given")
	}
	switch {
	case o.permits > 0 && o.shared:
		return usage("-c and -s cannot both be given: a semaphore has no shared mode")
	case o.permits > 0 && len(keys) > 1:
		return usage("-c takes one key: permits of several semaphores are not acquired at once")
	}
	switch o.onLost {
	case lostTerm, lostKill, lostWarn:
	default:
		return usage("--on-lost %s: is none of term, kill, warn", o.onLost)
	}
	if time.Duration(o.ttl) < time.Millisecond && cmd.Flags().Changed("ttl") { // the protocol counts milliseconds
		return usage("--ttl %v: must be at least 1ms", time.Duration(o.ttl))
	}
	if time.Duration(o.ttl) > protocol.MaxTTL*time.Millisecond {
		return usage("--ttl %v: a lease can be a day long at most", time.Duration(o.ttl))
	}
	o.keys, o.command = keys, args[dash:]
	return nil
}

// acquireArgs is what to ask the daemon for.
func (o *lockOptions) acquireArgs() client.AcquireArgs {
	a := client.AcquireArgs{Owner: 1, Wait: time.Duration(o.wait), TTL: time.Duration(o.ttl), Permits: uint32(o.permits)}
	if o.noWait {
		a.Wait = 0
	}
	if o.shared {
		a.Mode = protocol.Shared
	}
	return a
}

// name is the keys for people.
func (o *lockOptions) name() string { return strings.Join(o.keys, ", ") }

// label names the command in lists. Its arguments may be nobody's business.
func (o *lockOptions) label() string {
	s := strings.ToValidUTF8(filepath.Base(o.command[0]), "?")
	for len(s) > protocol.MaxName {
		s = strings.ToValidUTF8(s[:protocol.MaxName], "")
	}
	return s
}

// durationFlag is a time that is not negative and has a unit.
type durationFlag time.Duration

func (d *durationFlag) String() string { return time.Duration(*d).String() }
func (d *durationFlag) Type() string   { return "duration" }

func (d *durationFlag) Set(s string) error {
	v, err := config.ParseDuration(s)
	*d = durationFlag(v)
	return err
}

// countFlag is how many permits a semaphore has; 0 when it is not given.
type countFlag uint32

func (c *countFlag) String() string { return strconv.FormatUint(uint64(*c), 10) }
func (c *countFlag) Type() string   { return "int" }

func (c *countFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 || n > protocol.MaxPermits {
		return fmt.Errorf("is not a number of permits, 1 to %d", protocol.MaxPermits)
	}
	*c = countFlag(n)
	return nil
}

// codeFlag is an exit code.
type codeFlag int

func (c *codeFlag) String() string { return strconv.Itoa(int(*c)) }
func (c *codeFlag) Type() string   { return "int" }

func (c *codeFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return errors.New("is not an exit code, 0 to 255")
	}
	*c = codeFlag(n)
	return nil
}
