package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
)

// probeKey is inspected to find out whether the store answers. It need not be held.
const probeKey = "locksidecar-probe"

// status is the result of the commands status and health.
type status struct {
	Socket    string      `json:"socket"`
	Reachable bool        `json:"reachable"`
	Ready     bool        `json:"ready"` // the daemon is ready and the stores that were asked answer
	Error     string      `json:"error,omitempty"`
	Version   string      `json:"version,omitempty"`
	Protocol  uint64      `json:"protocol,omitempty"`
	Session   uint64      `json:"session,omitempty"`
	Stores    []storeView `json:"stores,omitempty"`
	Clock     *clockView  `json:"clock,omitempty"`
	Limits    *limitsView `json:"limits,omitempty"`
	Watch     string      `json:"watch,omitempty"`
	Moved     []movedView `json:"moved"` // null if not known
	movedErr  error       // why Moved is not known
	err       error       // the error of Error
	probed    bool        // the stores of Stores were asked
}

type storeView struct {
	Prefix      string `json:"prefix"`
	Store       string `json:"store"`
	Safety      string `json:"safety"`
	HeartbeatMS uint64 `json:"heartbeat_ms,omitempty"`
	Error       string `json:"error,omitempty"` // why the store does not answer
}

type clockView struct {
	NowMS       uint64 `json:"now_ms"`
	Shared      bool   `json:"shared"` // the daemon and this process use the same clock
	RoundTripUS int64  `json:"round_trip_us"`
}

type limitsView struct {
	MaxFrame     uint64 `json:"max_frame"`
	MinTTLMS     uint64 `json:"min_ttl_ms"`
	DefaultTTLMS uint64 `json:"default_ttl_ms"`
	MaxTTLMS     uint64 `json:"max_ttl_ms"`
}

// fetchStatus asks the daemon for its status. It leaves out fields that are not known. With every,
// it asks the store of each namespace; otherwise only the store of the keys without a namespace.
func fetchStatus(ctx context.Context, socket, name string, every bool) *status {
	s := &status{Socket: socket}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := s.ask(ctx, name, every); err != nil {
		s.err = err
		s.Error = clientExit(err, socket).Error()
	}
	return s
}

func (s *status) ask(ctx context.Context, name string, every bool) error {
	c, err := client.Dial(ctx, s.Socket, client.Options{Name: name})
	if err != nil {
		return err
	}
	defer c.Close()
	w := c.Welcome()
	s.Reachable, s.Version, s.Protocol, s.Session = true, w.Daemon, w.Version, w.Session
	for _, n := range w.Namespaces {
		s.Stores = append(s.Stores, storeView{n.Prefix, n.Store, n.Safety, n.Heartbeat, ""})
	}
	s.Limits = &limitsView{MaxFrame: w.MaxFrame, MinTTLMS: w.MinTTL, DefaultTTLMS: w.DefaultTTL,
		MaxTTLMS: w.MaxTTL}
	s.Watch = "connection"
	if w.Watch == protocol.WatchProcess {
		s.Watch = "process"
	}
	const ms = int64(time.Millisecond)
	began := renewer.Boottime()
	now, err := c.Ping(ctx)
	if err != nil {
		return err
	}
	ended := renewer.Boottime()
	s.Clock = &clockView{NowMS: now, RoundTripUS: (ended - began) / int64(time.Microsecond),
		Shared: int64(now) >= began/ms && int64(now) <= ended/ms}
	if err := s.probe(ctx, c, every); err != nil {
		return err
	}
	s.Ready = true
	return nil
}

// maxProbes is how many probes are in flight at once.
const maxProbes = 16

// probe inspects a key in each namespace, or only one outside all namespaces, and returns the first
// error. Keys that this user may not use are not checked.
func (s *status) probe(ctx context.Context, c *client.Client, every bool) error {
	errs := make([]error, len(s.Stores))
	slots := make(chan struct{}, maxProbes)
	var wg sync.WaitGroup
	for i := range s.Stores {
		n := &s.Stores[i]
		if n.Prefix != "" && !every {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			key := n.Prefix + probeKey
			_, err := c.Inspect(ctx, key[:min(len(key), protocol.MaxKey)])
			if err == nil || errors.Is(err, client.ErrDenied) {
				return
			}
			n.Error = err.Error()
			errs[i] = fmt.Errorf("inspect a key in the store: %w", err)
			if n.Prefix != "" {
				errs[i] = fmt.Errorf("inspect a key of namespace %q: %w", n.Prefix, err)
			}
		})
	}
	wg.Wait()
	s.probed = true
	return cmp.Or(errs...)
}

func (m *Main) statusCommand() *cobra.Command {
	var socket, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of this host's daemon and its store",
		Long: `Show whether the daemon can be reached and its stores answer, and details of the
daemon. The exit code is 0 if all answer, and else 69.`,
		Example: `  locksidecar status
  locksidecar status -o json | jq .ready`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := m.clientSocket(socket)
			if err != nil {
				return err
			}
			s := fetchStatus(cmd.Context(), path, "locksidecar status", true)
			if s.Reachable {
				s.askMoved(cmd.Context())
			}
			err = m.printed(output, s, s.write)
			if err == nil && !s.Ready {
				return exitWith(exitUnavailable)
			}
			return err
		},
	}
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "text", "json")
	return cmd
}

func (s *status) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, format string, a ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", a...) }
	line("socket", "%s", s.Socket)
	if !s.Reachable {
		line("daemon", "not reachable: %s", s.Error)
		return t.Flush()
	}
	line("daemon", "running, version %s", s.Version)
	line("session", "%d, protocol %d", s.Session, s.Protocol)
	for _, n := range s.Stores {
		state := "answers"
		switch {
		case n.Error != "":
			state = "does not answer: " + n.Error
		case !s.probed:
			state = "not checked: " + s.Error
		}
		line(strings.TrimSpace("store "+n.Prefix), "%s, %s; %s", n.Store, n.Safety, state)
	}
	line("locks", "%s", s.movedText())
	if c := s.Clock; c != nil {
		whose := "the same as this shell's"
		if !c.Shared {
			whose = "not this shell's (another time namespace)"
		}
		line("clock", "%v since boot, %s; round trip %v",
			(time.Duration(c.NowMS) * time.Millisecond).Round(time.Second),
			whose, time.Duration(c.RoundTripUS)*time.Microsecond)
	}
	l := s.Limits
	line("ttl", "%v (%v to %v)", millis(l.DefaultTTLMS), millis(l.MinTTLMS), millis(l.MaxTTLMS))
	if s.Watch == "process" {
		line("clients", "the daemon notices when a client's process ends")
	} else {
		line("clients", "the daemon notices only when a client's connection ends")
	}
	return t.Flush()
}

func millis(n uint64) time.Duration { return time.Duration(min(n, 1<<42)) * time.Millisecond }

func (m *Main) healthCommand() *cobra.Command {
	var socket string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Exit with 0 if the daemon and its store are ready, else with 69",
		Long: `For probes: the exit code is 0 if the daemon answers, is not about to end, and the
store of the keys without a namespace answers. Else it is 69, and the reason is on
standard error. 'locksidecar status' checks the stores of namespaces, too.`,
		Example: `  locksidecar health && echo ready
  locksidecar health --socket /run/locksidecar/locksidecar.sock`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := m.clientSocket(socket)
			if err != nil {
				return err
			}
			s := fetchStatus(cmd.Context(), path, "locksidecar health", false)
			switch {
			case s.Ready:
				return nil
			case quiet:
				return exitWith(exitUnavailable)
			}
			return exit(exitUnavailable, "%s", s.Error)
		},
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no reason")
	return cmd
}
