package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// adminClient sends requests to a daemon's admin socket. Close ends its connections.
type adminClient struct {
	socket string // the socket for locks
	http   http.Client
}

func newAdminClient(socket string) *adminClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", admin.Socket(socket))
	}
	return &adminClient{socket, http.Client{Transport: &http.Transport{DialContext: dial,
		DisableCompression: true}}}
}

func (c *adminClient) Close() { c.http.CloseIdleConnections() }

// maxAnswer bounds the size of an answer, in bytes.
const maxAnswer = 64 << 20

// call sends a request and reads the answer's JSON into v. It blocks for at most answerTime. Its
// error has an exit code.
func (c *adminClient) call(ctx context.Context, method, path string, form url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	target, body := "http://localhost"+path, io.Reader(nil)
	if method == http.MethodGet {
		target += "?" + form.Encode()
	} else {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return exit(exitInternal, "%w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the host name of the URL, which is invented
		}
		if errors.Is(err, fs.ErrPermission) {
			return exit(exitDenied, "this user (uid %d) may not open the daemon's admin socket, %s; "+
				"run this as root; 'locksidecar locks' and 'locksidecar who' do not need it",
				os.Geteuid(), admin.Socket(c.socket))
		}
		return clientExit(err, c.socket)
	}
	defer resp.Body.Close()
	answer := io.LimitReader(resp.Body, maxAnswer)
	if resp.StatusCode != http.StatusOK {
		return c.refusal(resp, answer)
	}
	if err := json.NewDecoder(answer).Decode(v); err != nil {
		return clientExit(fmt.Errorf("read the daemon's answer: %w", err), c.socket)
	}
	return nil
}

// ready asks whether the daemon is ready, and if not, why.
func (c *adminClient) ready(ctx context.Context) (ready bool, why string, err error) {
	status, text, err := c.get(ctx, "/readyz", 4096)
	return status == http.StatusOK, strings.TrimSpace(string(text)), err
}

// get returns the status and the text of an answer, of which it reads at most limit bytes.
func (c *adminClient) get(ctx context.Context, path string, limit int64) (status int,
	text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, limit))
	return resp.StatusCode, text, err
}

// refusal returns the error of an answer that is not a success.
func (c *adminClient) refusal(resp *http.Response, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, 4096))
	var said struct{ Error string }
	known := json.Unmarshal(text, &said) == nil && said.Error != ""
	if !known {
		said.Error = strings.TrimSpace(string(text))
	}
	why := terminal.Clean(said.Error)
	switch {
	case resp.StatusCode == http.StatusBadRequest:
		return exit(exitUsage, "%s", why)
	case resp.StatusCode == http.StatusForbidden:
		return exit(exitDenied, "%s", why)
	case resp.StatusCode == http.StatusNotFound && known:
		return exit(exitNotHeld, "%s", why)
	case resp.StatusCode == http.StatusNotFound:
		return exit(exitUnavailable, "the daemon at %s cannot do that: it is older than this "+
			"program",
			c.socket)
	}
	return exit(exitUnavailable, "the daemon at %s answers %s: %s", c.socket, resp.Status, why)
}

// view asks for a view.
func (c *adminClient) view(ctx context.Context, q engine.ViewQuery) (*engine.View, error) {
	var v engine.View
	err := c.call(ctx, http.MethodGet, "/view.json", q.Values(), &v)
	return &v, err
}

// listing is a command that shows rows of a view.
type listing[R any] struct {
	socket, output string
	limit          int
	query          func(prefix string) engine.ViewQuery
	rows           func(v *engine.View, prefix string) (rows []R, more bool)
	titles         string // of the table, separated by tabs
	cells          func(*R) []any
}

// listRows is the default limit of a table.
const listRows = 50

// flags gives a listing command its flags and its function.
func (l *listing[R]) flags(m *Main, cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	cmd.Args = onePrefix
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return l.run(cmd.Context(), m, cmd, strings.Join(args, ""))
	}
	socketFlag(cmd, &l.socket)
	outputFlag(cmd, &l.output, "table", "json")
	cmd.Flags().IntVar(&l.limit, "limit", 0,
		fmt.Sprintf("show at most this many rows, 1 to %d (default %d, with -o json %d)",
			engine.MaxViewRows, listRows, engine.MaxViewRows))
}

func onePrefix(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("takes one prefix, not %d", len(args))
	}
	return nil
}

func (l *listing[R]) run(ctx context.Context, m *Main, cmd *cobra.Command, prefix string) error {
	limit := l.limit
	switch {
	case !cmd.Flags().Changed("limit") && l.output == "json":
		limit = engine.MaxViewRows
	case !cmd.Flags().Changed("limit"):
		limit = listRows
	case limit < 1 || limit > engine.MaxViewRows:
		return usage("--limit %d: is not from 1 to %d", limit, engine.MaxViewRows)
	}
	socket, err := m.clientSocket(l.socket)
	if err != nil {
		return err
	}
	c := newAdminClient(socket)
	defer c.Close()
	q := l.query(prefix)
	q.Limit = max(q.Limit, limit)
	v, err := c.view(ctx, q)
	if err != nil {
		return err
	}
	rows, more := l.rows(v, prefix)
	if len(rows) > limit {
		rows, more = rows[:limit], true
	}
	err = printRows(m, l.output, rows, l.titles, l.cells)
	if more && err == nil {
		fmt.Fprintf(m.Stderr, "%s: %d rows are shown, and there may be more (--limit: at most %d)\n",
			cmd.CommandPath(), len(rows), engine.MaxViewRows)
	}
	return err
}
