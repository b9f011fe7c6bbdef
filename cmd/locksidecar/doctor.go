package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// finding is the result of one check of the command doctor.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"` // ok, warning or failed
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // the advice
}

// doctor collects findings about this host's daemon.
type doctor struct {
	m        *Main
	socket   string
	findings []finding
}

func (d *doctor) ok(check, format string, a ...any) {
	d.findings = append(d.findings, finding{check, "ok", fmt.Sprintf(format, a...), ""})
}

func (d *doctor) warn(check, do, format string, a ...any) {
	d.findings = append(d.findings, finding{check, "warning", fmt.Sprintf(format, a...), do})
}

func (d *doctor) fail(check, do, format string, a ...any) {
	d.findings = append(d.findings, finding{check, "failed", fmt.Sprintf(format, a...), do})
}

func (m *Main) doctorCommand() *cobra.Command {
	var socket, file, output string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why locks do not work on this host, and how to repair that",
		Long: `Check the socket and its permissions, the daemon and its version, the stores, the
clock, the limits of file descriptors, the kernel, and the configuration. Each problem
comes with advice. The checks change nothing.

The exit code is 0 if no check failed, and else 69. Warnings do not count.`,
		Example: `  locksidecar doctor
  locksidecar doctor --config /etc/locksidecar/locksidecar.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := m.clientSocket(socket)
			if err != nil {
				return err
			}
			d := &doctor{m: m, socket: path}
			d.examine(cmd.Context(), file)
			if err := m.printed(output, d.findings, d.write); err != nil {
				return err
			}
			for _, f := range d.findings {
				if f.State == "failed" {
					return exitWith(exitUnavailable)
				}
			}
			return nil
		},
	}
	socketFlag(cmd, &socket)
	configFlag(cmd, &file)
	outputFlag(cmd, &output, "text", "json")
	return cmd
}

// examine makes all checks. It blocks for at most a few times answerTime.
func (d *doctor) examine(ctx context.Context, file string) {
	d.configuration(file)
	d.path()
	s := fetchStatus(ctx, d.socket, "locksidecar doctor", false)
	d.daemon(s)
	if s.Reachable {
		d.stores(ctx, s)
		d.clock(s)
		d.descriptors(ctx)
		d.kernel(s)
	}
}

func (d *doctor) configuration(file string) {
	const check = "configuration"
	if err := config.Misspelt(d.m.Environ); err != nil {
		d.fail(check, "correct the name of the variable", "%v", err)
		return
	}
	if d.m.Env.File(file) == "" {
		d.ok(check, "not checked; --config FILE checks one")
		return
	}
	_, err := d.m.load(file, pflag.NewFlagSet("", pflag.ContinueOnError))
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread):
		d.fail(check, "name a file that this user may read with --config or "+config.FileVariable,
			"%v", err)
	case err != nil:
		d.fail(check, "correct the lines at fault; 'locksidecar config check' shows the result", "%v",
			err)
	default:
		d.ok(check, "well-formed")
	}
}

// path checks what the file system says about the socket.
func (d *doctor) path() {
	const check = "socket"
	info, err := os.Stat(d.socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.fail(check, "start the daemon with 'locksidecar serve', "+
			"or name its socket with --socket or LOCKSIDECAR_SOCKET",
			"%s does not exist", d.socket)
	case errors.Is(err, fs.ErrPermission):
		d.fail(check, "let this user enter the directories above the socket", "%s: %v", d.socket, err)
	case err != nil:
		d.fail(check, "", "%v", err)
	case info.Mode()&fs.ModeSocket == 0:
		d.fail(check, "name the daemon's socket with --socket or LOCKSIDECAR_SOCKET",
			"%s is not a socket", d.socket)
	case isAdminSocket(d.socket):
		d.fail(check, "name the socket for locks, without "+filepath.Ext(d.socket),
			"%s is the admin socket", d.socket)
	case syscall.Access(d.socket, writable) != nil:
		d.fail(check, groupAdvice(info), "%s has mode %04o, and this user (uid %d) may not connect",
			d.socket, info.Mode().Perm(), os.Geteuid())
	default:
		d.ok(check, "%s, mode %04o", d.socket, info.Mode().Perm())
	}
}

// writable is W_OK of access(2), the right that connecting to a socket needs.
const writable = 2

// groupAdvice says which group may connect to a socket.
func groupAdvice(info fs.FileInfo) string {
	// Nobody should join group 0 for a socket.
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().Perm()&0o020 != 0 && st.Gid != 0 {
		return fmt.Sprintf("add the user to the socket's group (gid %d), and log in again", st.Gid)
	}
	return "set socket_mode and socket_group in the configuration, or run as the daemon's user"
}

func (d *doctor) daemon(s *status) {
	const check = "daemon"
	switch own := thisBuild().Version; {
	case !s.Reachable && d.findings[len(d.findings)-1].State == "failed":
		// The finding about the socket, which is the last one, says it already.
	case errors.Is(s.err, client.ErrDraining):
		d.fail(check, "wait until it has ended, and start the next one", "%s", s.Error)
	case !s.Reachable:
		d.fail(check, "read its log: 'journalctl -u locksidecar', or the log of its pod", "%s", s.Error)
	case s.Version != own:
		d.warn(check, "restart the older one of the two; an upgrade by takeover loses no locks",
			"answers; its version is %s, and this program's is %s", s.Version, own)
	default:
		d.ok(check, "answers, version %s", s.Version)
	}
}

func (d *doctor) stores(ctx context.Context, s *status) {
	const check = "store"
	for _, n := range s.Stores {
		name := check
		if n.Prefix != "" {
			name += " of " + n.Prefix
		}
		d.ok(name, "%s: %s", n.Store, n.Safety)
	}
	a := newAdminClient(d.socket)
	defer a.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ready, why, err := a.ready(ctx)
	switch {
	case err == nil && !ready:
		d.fail(check, "restore the store, or the path to it; events store_down in the log have the error",
			"%s", why)
	case !s.Ready && errors.Is(s.err, fs.ErrPermission):
		d.warn(check, "run doctor as a user who may lock keys", "not checked: %s", s.Error)
	case !s.Ready:
		d.fail(check, "restore the store, or the path to it; events store_down in the log have the error",
			"%s", s.Error)
	case err != nil:
		d.ok(check, "the store of most keys answers; other stores are not checked, "+
			"because the admin socket cannot be opened")
	default:
		d.ok(check, "every store answers")
	}
}

func (d *doctor) clock(s *status) {
	const check = "clock"
	switch {
	case s.Clock != nil && !s.Clock.Shared:
		d.warn(check,
			"run clients and daemon in one time namespace; else validities are slightly shorter",
			"the daemon and this shell are in different time namespaces")
	case clockUnsynchronized():
		d.warn(check, "run chrony, systemd-timesyncd or another NTP client",
			"the kernel's clock is not synchronized; "+
				"fences of Redis, MySQL and PostgreSQL use the servers' clocks")
	default:
		d.ok(check, "the same for daemon and clients")
	}
}

// descriptors reads the daemon's own count and limit from its metrics.
func (d *doctor) descriptors(ctx context.Context) {
	const check = "descriptors"
	open, limit, err := daemonFiles(ctx, d.socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.ok(check, "not checked, because the admin socket cannot be opened")
	case err != nil:
		d.ok(check, "not checked: the daemon's metrics cannot be read (%v)", err)
	case open > limit*4/5:
		d.warn(check, "raise LimitNOFILE= of the unit; set limits.max_conns to a quarter of it",
			"%.0f of %.0f are open", open, limit)
	case limit < 16384:
		d.warn(check, "raise LimitNOFILE= of the unit, or ulimit -n; a session takes three",
			"the daemon may open %.0f, enough for %.0f sessions", limit, (limit-open)/3)
	default:
		d.ok(check, "%.0f of %.0f are open", open, limit)
	}
}

var fileMetrics = regexp.MustCompile(`(?m)^process_(open|max)_fds (\S+)$`)

// daemonFiles returns the numbers of descriptors that the daemon has open and may open.
func daemonFiles(ctx context.Context, socket string) (open, limit float64, err error) {
	a := newAdminClient(socket)
	defer a.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, text, err := a.get(ctx, "/metrics", maxAnswer)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("open %s: %w", admin.Socket(socket), u.Err)
	}
	if err != nil {
		return 0, 0, err
	}
	found := map[string]float64{}
	for _, m := range fileMetrics.FindAllSubmatch(text, -1) {
		found[string(m[1])], _ = strconv.ParseFloat(string(m[2]), 64)
	}
	if found["max"] == 0 {
		return 0, 0, errors.New("they do not have process_max_fds")
	}
	return found["open"], found["max"], nil
}

func (d *doctor) kernel(s *status) {
	const check = "kernel"
	if s.Watch == "process" {
		d.ok(check, "the daemon detects the end of a client's process")
		return
	}
	d.warn(check, "use Linux 6.5 or later, "+
		"or let the daemon see the clients' processes (hostPID in Kubernetes)",
		"the daemon detects only the end of a connection; "+
			"a child that keeps the socket keeps its parent's locks")
}

func (d *doctor) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range d.findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, f.Check, strings.ReplaceAll(f.Found, "\n", "\n\t\t"))
		if f.Do != "" {
			fmt.Fprintf(t, "\t\tto do: %s\n", f.Do)
		}
	}
	return t.Flush()
}
