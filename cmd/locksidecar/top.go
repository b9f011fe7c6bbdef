package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/top"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// minInterval is the shortest time between two views.
const minInterval = 100 * time.Millisecond

// topOptions has the values of the command line.
type topOptions struct {
	socket   string
	interval time.Duration
	sort     string
	reverse  bool
	rounds   int // 0 for no limit
	prefix   string
}

func (m *Main) topCommand() *cobra.Command {
	o := &topOptions{interval: time.Second}
	cmd := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Watch locks, waiters and sessions live",
		Long: `Show the state of the daemon and its stores, and the holds, waiters and sessions. The
display changes every second. With PREFIX only keys that begin with it are shown.
Problems come first: stores that are down or whose renewals are late, and holds that
are renewed late, degraded or waited for.

On a terminal top fills the screen; ? shows the keys: Tab for the next list, s for
another order, / for a prefix, q to quit. Elsewhere, and with -n, it prints plain text
in rounds. If the daemon ends, top waits for the next one, but not with -n.

For each waiter, BEHIND names a holder of the lock, on any host. Screens wider than 80
columns also show the waiter's mode, PID and session.

NO_COLOR in the environment turns colours off.`,
		Example: `  locksidecar top
  locksidecar top --sort waiters order:
  locksidecar top -n 1 > now.txt`,
		DisableFlagsInUseLine: true,
		Args:                  onePrefix,
		PreRunE: func(cmd *cobra.Command, args []string) error {
			o.prefix = strings.Join(args, "")
			switch {
			case o.interval < minInterval:
				return usage("--interval %v: is less than %v", o.interval, minInterval)
			case !slices.Contains(engine.ViewSorts, o.sort):
				return usage("--sort %s: is none of %s",
					o.sort, strings.Join(engine.ViewSorts, ", "))
			case o.rounds < 0 || o.rounds == 0 && cmd.Flags().Changed("rounds"):
				return usage("-n %d: is not a number of rounds", o.rounds)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return m.top(cmd.Context(), o) },
	}
	cmd.ValidArgsFunction = m.completeKeys(&o.socket)
	socketFlag(cmd, &o.socket)
	f := cmd.Flags()
	f.Var(durationFlag(&o.interval), "interval", "`time` between two updates")
	f.StringVar(&o.sort, "sort", engine.ViewTrouble, "`order`: "+strings.Join(engine.ViewSorts, ", "))
	f.BoolVarP(&o.reverse, "reverse", "r", false, "reverse the order")
	f.IntVarP(&o.rounds, "rounds", "n", 0, "print this number of plain `rounds`, and end")
	completeWords(cmd, "sort", engine.ViewSorts...)
	return cmd
}

func (m *Main) top(ctx context.Context, o *topOptions) error {
	socket, err := m.clientSocket(o.socket)
	if err != nil {
		return err
	}
	c := newAdminClient(socket)
	defer c.Close()
	noColor, _ := m.Env("NO_COLOR")
	t := &top.Top{Sort: o.sort, Desc: o.reverse, Prefix: o.prefix, Colors: noColor == ""}
	kind, _ := m.Env("TERM")
	if o.rounds > 0 || kind == "" || kind == "dumb" || !run.IsTerminal(m.Stdout) ||
		!terminal.Attached() {
		return m.topRounds(ctx, o, c, t)
	}
	// Without a daemon, top ends instead of showing a screen.
	v, err := c.view(ctx, t.Query(0))
	if err != nil {
		return err
	}
	t.Took(v)
	l := &topLoop{m: m, client: c, top: t, interval: o.interval, answers: make(chan answer, 1)}
	return l.run(ctx)
}

// topRounds prints plain rounds.
func (m *Main) topRounds(ctx context.Context, o *topOptions, c *adminClient, t *top.Top) error {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	gone := false
	for n := 1; ; n++ {
		v, err := c.view(ctx, t.Query(0))
		switch {
		case err != nil && (o.rounds > 0 || n == 1):
			return err
		case err != nil && !gone:
			fmt.Fprintf(m.Stderr, "locksidecar top: waiting for the daemon: %v\n", err)
		case err == nil:
			t.Took(v)
			if n > 1 {
				fmt.Fprintln(m.Stdout)
			}
			if err := t.WriteRound(m.Stdout); err != nil {
				return written(err)
			}
		}
		gone = err != nil
		if n == o.rounds {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// answer is a view, or the reason why there is none.
type answer struct {
	view *engine.View
	err  error
}

// topLoop runs top on a screen.
type topLoop struct {
	m        *Main
	client   *adminClient
	top      *top.Top
	interval time.Duration

	screen  *terminal.Screen
	keys    terminal.Decoder
	asking  bool        // a request is in flight
	again   bool        // another request follows it
	answers chan answer // with room for one
	wg      sync.WaitGroup
}

// escapeTime bounds how long after an escape the rest of a key may arrive.
const escapeTime = 50 * time.Millisecond

func (l *topLoop) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGTSTP, syscall.SIGWINCH)
	defer signal.Stop(signals)
	screen, err := terminal.Open(l.m.Stdout)
	if err != nil {
		cancel()
		return exit(exitInternal, "%w", err)
	}
	l.screen = screen
	defer screen.Close()
	defer l.wg.Wait()
	defer cancel()
	defer screen.Rescue()
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for {
		w, h := screen.Size()
		if err := screen.Draw(l.top.Frame(w, h, time.Now())); err != nil {
			return exit(exitInternal, "%w", err)
		}
		var escape <-chan time.Time
		if l.keys.Pending() {
			escape = time.After(escapeTime)
		}
		var keys []terminal.Key
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if !l.top.Paused() {
				l.ask(ctx)
			}
		case a := <-l.answers:
			l.answered(ctx, a)
		case b, ok := <-screen.Typed():
			if !ok { // the terminal is gone
				return exitWith(128 + int(syscall.SIGHUP))
			}
			keys = l.keys.Write(b)
		case <-escape:
			keys = l.keys.Flush()
		case s := <-signals:
			if end := l.signalled(s.(syscall.Signal)); end != nil {
				return end
			}
		}
		if l.quits(ctx, keys) {
			return nil
		}
	}
}

// quits handles keys, and reports whether one of them ends the program.
func (l *topLoop) quits(ctx context.Context, keys []terminal.Key) bool {
	for _, k := range keys {
		switch l.top.Key(k) {
		case top.Quit:
			return true
		case top.Fetch:
			l.ask(ctx)
		}
	}
	return false
}

// ask requests a view. If a request is in flight, another one follows it.
func (l *topLoop) ask(ctx context.Context) {
	if l.asking {
		l.again = true
		return
	}
	l.asking, l.again = true, false
	_, h := l.screen.Size()
	q := l.top.Query(h)
	l.wg.Go(func() {
		defer l.screen.Rescue()
		v, err := l.client.view(ctx, q)
		l.answers <- answer{v, err}
	})
}

func (l *topLoop) answered(ctx context.Context, a answer) {
	l.asking = false
	if a.err != nil {
		l.top.Failed(a.err, time.Now())
		return
	}
	l.top.Took(a.view)
	if l.again {
		l.ask(ctx)
	}
}

// signalled handles a signal. It returns an error if the signal ends the program.
func (l *topLoop) signalled(s syscall.Signal) error {
	switch s {
	case syscall.SIGWINCH:
		l.screen.Clear()
	case syscall.SIGTSTP:
		if err := l.screen.Stop(); err != nil {
			return exit(exitInternal, "%w", err)
		}
	default:
		return exitWith(128 + int(s))
	}
	return nil
}
