package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/tuning"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

func (m *Main) serveCommand() *cobra.Command {
	var file string
	var takeover, watched bool
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run the daemon that serves locks on this host",
		Long: `Run the daemon. It listens on a Unix socket, serves locks to its clients, and keeps
them in the store that --upstream names. Hosts with the same store share their locks.
The default store, memory:, is for this host alone and needs no server.

The daemon stays in the foreground and logs to standard error. After SIGTERM or
SIGINT it drains: it grants no new locks, gives holders the time --drain to finish,
releases all locks and ends. A second signal ends it at once; then locks stay taken
until their leases end.

Every flag is also a field of the configuration file and an environment variable:
--max-wait, max_wait, LOCKSIDECAR_MAX_WAIT; --max-conns, limits.max_conns,
LOCKSIDECAR_LIMITS_MAX_CONNS. Flags override the environment, which overrides the file.
Set the store's password in the file, in a separate file (password_file) or in
LOCKSIDECAR_PASSWORD.

After SIGHUP the daemon reads the configuration again: stores, namespaces, limits and
the log level. With --watch, it also does so after each change of the file. Clients
notice nothing. A file with an error changes nothing, and the log names the error.
SIGTERM and SIGINT cancel a reload or a takeover that is in progress.

After SIGUSR2 the daemon starts the installed program, which takes over its socket, its
connections and all locks. With --takeover, serve takes over from the daemon that serves
the socket, if there is one. Clients notice only a short pause. If anything fails, the
present daemon continues. Locks in ZooKeeper are lost; their holders are told.

With OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other variables, acquires with a
trace context are exported as spans, by OTLP over HTTP.

` + exitCodesText,
		Example: `  # for this host alone, socket in the usual place
  locksidecar serve

  # locks shared by all hosts that use this Redis
  locksidecar serve --upstream redis://redis.internal:6379

  # from a file, after a check of it
  locksidecar config check --config /etc/locksidecar.yaml
  locksidecar serve --config /etc/locksidecar.yaml`,
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loadConfig := func() (*proposal, error) { return m.load(file, cmd.Flags()) }
			w := watcher{}
			if watched {
				if w.file = m.Env.File(file); w.file == "" {
					return exit(exitUsage, "--watch: name a configuration file with --config")
				}
				w.used, _ = os.Stat(w.file)
			}
			p, err := loadConfig()
			if err != nil {
				return err
			}
			return m.serve(cmd.Context(), p, takeover, loadConfig, w)
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().BoolVar(&takeover, "takeover", false,
		"take over from the daemon that serves the socket, if there is one")
	cmd.Flags().BoolVar(&watched, "watch", false,
		"reload the configuration file when it changes, as after SIGHUP")
	config.AddFlags(cmd.Flags(), m.Env)
	completeSettings(cmd)
	return cmd
}

func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "",
		"`file` with the configuration, YAML (default: "+config.FileVariable+", else none)")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

func completeSettings(cmd *cobra.Command) {
	_ = cmd.MarkFlagFilename("socket", "sock")
	_ = cmd.RegisterFlagCompletionFunc("upstream", cobra.FixedCompletions(
		upstreams(), cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	completeWords(cmd, "log-level", "debug", "info", "warn", "error")
	completeWords(cmd, "log-format", "auto", "json", "console")
}

func upstreams() (all []string) {
	for _, scheme := range config.Schemes() {
		switch {
		case scheme == "memory":
			all = append(all, "memory:")
		case strings.HasSuffix(scheme, "unix"):
			all = append(all, scheme+":///")
		default:
			all = append(all, scheme+"://")
		}
	}
	return all
}

// server is a daemon with its configuration and its stores.
type server struct {
	*daemon.Daemon
	m          *Main
	conf       *config.Config
	plans      map[string]*plan          // plans of the stores in conf
	loadConfig func() (*proposal, error) // reads and checks the configuration
	stores     *openStores
	log        *zap.Logger
	level      zap.AtomicLevel
	// watched means that the daemon reloads by itself. Then no user repeats a reload that was refused,
	// so the daemon has to.
	watched bool
}

// serve runs the daemon until a signal or the end of ctx. Everything ends in the reverse order of
// its start.
func (m *Main) serve(
	ctx context.Context, p *proposal, takeOver bool, loadConfig func() (*proposal, error), w watcher,
) error {
	c := p.conf
	listener, kept, err := activated(c)
	if err != nil {
		return err
	}
	out := m.newLogs(c.Log)
	log := out.main

	sig := newDaemonSignals()
	defer sig.stop()

	spans := m.newTracing(ctx, log)
	defer spans.close()
	threads := tuning.NewThreads(m.Env)
	s := &server{m: m, conf: c, plans: p.plans, loadConfig: loadConfig, stores: newOpenStores(log),
		log: log, level: out.level, watched: w.file != ""}
	defer s.stores.closeAll()
	s.stores.takeover = s.findParked(kept)
	starting, stopWatching := sig.starting(ctx)
	if takeOver && s.stores.takeover == nil {
		err = s.claim(starting)
	}
	if err == nil && s.stores.takeover == nil {
		s.stores.takeover = s.findInFile()
	}
	begin := func() error {
		if err := s.adoptSeen(); err != nil {
			return err
		}
		s.matchParked(p.needs)
		return s.stores.use(starting, p, func(serving daemon.Serving) (err error) {
			cfg := daemon.Config{Socket: c.Socket, SocketMode: c.SocketMode, SocketGroup: c.SocketGroup,
				Listener:    listener,
				AdminListen: c.AdminListen, Host: c.HostName, Serving: serving, Takeover: threads.Takeover,
				TakenOver: s.tellMain, Log: log, Audit: out.raw, Spans: spans.take(),
				Version: thisBuild().Version, Seen: s.stores.seen.leave}
			if s.stores.takeover != nil {
				return s.inherit(cfg)
			}
			s.Daemon, err = daemon.Listen(cfg)
			return listenExit(err)
		})
	}
	if err == nil {
		err = begin()
	}
	if errors.Is(err, takeover.ErrLeft) { // the earlier process ended while this one opened its stores
		s.stores.takeover = s.findInFile()
		err = begin()
	}
	if errors.Is(err, takeover.ErrParked) {
		s.discardParked(err)
		err = begin()
	}
	first := stopWatching()
	if first != nil && err != nil {
		log.Info("stopped by a signal before serving",
			zap.String("event", "stopped"), zap.Stringer("signal", first), zap.Error(err))
		return nil
	}
	if err != nil {
		return err
	}
	m.announce(log, c, p.needs)
	following, done := context.WithCancel(ctx)
	var load sync.WaitGroup
	load.Go(func() { threads.FollowLoad(following, m.Env, s.Daemon) })
	load.Go(func() { s.feedWatchdog(following) })
	if w.file != "" {
		go w.watch(following, sig.wantReload)
	}
	defer load.Wait()
	defer done()
	return s.drive(ctx, sig, first)
}

// drive serves until the first signal to end. That signal cancels a reload in progress, and then
// the daemon parks its state or drains. The second signal ends the daemon at once. first is the
// first signal to end if it arrived during the start, and otherwise nil.
func (s *server) drive(ctx context.Context, sig *daemonSignals, first os.Signal) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	s.tell(sd.SdNotifyReady)
	working, stopWork := context.WithCancel(ctx)
	workDone := make(chan struct{}) // closed when no reload and no start of a successor is in progress
	go func() {
		defer close(workDone)
		retry := time.AfterFunc(reloadAgain, sig.wantReload)
		retry.Stop()
		defer retry.Stop()
		sig.work(working, func() {
			if err := s.reload(working); s.watched && mayPassLater(err) {
				retry.Reset(reloadAgain)
			}
		}, s.startSuccessor)
	}()
	defer func() { stopWork(); <-workDone }()
	var second os.Signal
	var mayDrain <-chan struct{} // workDone after the first signal to end; nil before
	beginEnd := func(sig os.Signal) {
		s.log.Info("told to end", zap.String("event", "signal"), zap.Stringer("signal", sig))
		s.End()
		stopWork()
		mayDrain = workDone
	}
	if first != nil {
		beginEnd(first)
	}
	for {
		select {
		case err := <-served:
			passed := errors.Is(err, daemon.ErrTakenOver)
			if passed {
				s.stores.markPassed()
			}
			switch {
			case err != nil && !passed:
				return exit(exitInternal, "serve: %w", err)
			case second != nil:
				return exitWith(signalCode(second))
			case passed && first == nil: // the daemon has logged the takeover
				return nil
			}
			s.log.Info("stopped", zap.String("event", "stopped"))
			return nil
		case got := <-sig.end:
			if first == nil {
				first = got
				beginEnd(got)
				continue
			}
			second = got
			s.log.Warn("told to end at once",
				zap.String("event", "signal"), zap.Stringer("signal", got))
			s.Stop()
		case <-mayDrain:
			mayDrain = nil
			s.tell(sd.SdNotifyStopping)
			if !s.park() {
				drain()
			}
		}
	}
}

// reloadAgain is the pause before a daemon reads its watched configuration again, which was refused
// for a reason that may pass.
const reloadAgain = 10 * time.Second

// mayPassLater reports whether the same configuration may be accepted later: a store cannot be
// reached, locks have to be released first, or another process takes over.
func mayPassLater(err error) bool {
	e, ok := errors.AsType[*exitError](err)
	return ok && (e.code == exitUnavailable || e.code == exitTryAgain) ||
		errors.Is(err, daemon.ErrBusy)
}

// reload applies the present configuration, as a whole or not at all.
func (s *server) reload(ctx context.Context) error {
	s.tellReloading()
	defer s.tell(sd.SdNotifyReady)
	p, err := s.read(ctx)
	if err == nil {
		err = s.change(ctx, p)
	}
	if err != nil {
		s.log.Error("configuration not reloaded: the daemon keeps its configuration",
			zap.String("event", "reload_refused"), zap.Error(err))
		return err
	}
	s.log.Info("configuration reloaded", zap.String("event", "reloaded"))
	return nil
}

// read reads the configuration and the files that it names. A read can block without end: a file
// may be a pipe, or its file system may not answer. So read returns when ctx ends, even if its
// goroutine is still blocked.
func (s *server) read(ctx context.Context) (*proposal, error) {
	type outcome struct {
		*proposal
		error
	}
	done := make(chan outcome, 1)
	go func() {
		p, err := s.loadConfig()
		if err == nil {
			err = s.checkRestart(p.conf)
		}
		done <- outcome{p, err}
	}()
	select {
	case o := <-done:
		return o.proposal, o.error
	case <-ctx.Done():
		return nil, fmt.Errorf("read the configuration: %w", context.Cause(ctx))
	}
}

// checkRestart returns an error if a setting has changed that needs a restart.
func (s *server) checkRestart(c *config.Config) error {
	for _, f := range config.Settings() {
		if was, is := f.Value(s.conf), f.Value(c); f.Restart && was != is {
			return fmt.Errorf("%s (%s): it is %q, and changing it to %q needs a restart",
				f.Path, c.From(&f), was, is)
		}
	}
	return nil
}

// change makes the daemon use the configuration p, or returns an error and changes nothing.
func (s *server) change(ctx context.Context, p *proposal) error {
	if err := s.refuseMoved(p); err != nil {
		return err
	}
	if err := s.stores.use(ctx, p, s.Reload); err != nil {
		return err
	}
	s.warnMoves(p)
	s.warnMoved()
	s.conf, s.plans = p.conf, p.plans
	s.level.SetLevel(levelOf(p.conf.Log))
	return nil
}

// warnMoves logs which keys move to another store without a step in which they are in both stores.
func (s *server) warnMoves(p *proposal) {
	told := make(map[string]bool)
	for _, n := range append(p.conf.AllNamespaces(), s.conf.AllNamespaces()...) {
		if told[n.Prefix] {
			continue
		}
		told[n.Prefix] = true
		_, _, was := storeOf(s.conf, s.conf.Space(n.Prefix), s.plans)
		_, _, is := storeOf(p.conf, p.conf.Space(n.Prefix), p.plans)
		if share(was, is) {
			continue
		}
		s.log.Warn("keys moved to another store at once: until all hosts have reloaded, hosts with "+
			"the old and the new configuration do not exclude each other; 'both' avoids that",
			zap.String("event", "store_changed"), zap.String("prefix", n.Prefix))
	}
}
