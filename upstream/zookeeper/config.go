package zookeeper

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// These are the defaults of a Config. The default timeout is never more than a quarter of the
// session.
const (
	DefaultSession = 10 * time.Second
	DefaultTimeout = 2 * time.Second
)

// maxChroot limits the chroot path in bytes, so that a full batch stays well below the server's
// jute.maxbuffer of 1 MB.
const maxChroot = 256

// Config selects a ZooKeeper and how to use it. Parse makes it from a URL.
type Config struct {
	driverkit.Options
	url     *storeurl.URL
	Servers []string      // host:port each
	Chroot  string        // the locks' common path: empty, or "/a/b"
	Session time.Duration // the requested session timeout; the granted one counts
	Timeout time.Duration // the limit of one batch, and of connecting to one server
	Open    bool          // all users can access the nodes, not only the URL's user

	idle idleLimits
}

// idleLimits are constant except in tests.
type idleLimits struct {
	after time.Duration
	limit int // in bytes
	pause time.Duration
}

// Parse reads zookeeper://[user:password@]host[:port][,host[:port]…][/chroot/path] with the
// parameters session, timeout, acl (open or creator), password_file, and for TLS tls, ca, cert,
// key and server_name. It does not connect and opens no file. Its errors are ErrConfig and show
// no secret.
func Parse(raw string) (Config, error) {
	c, err := parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func parse(raw string) (Config, error) {
	c, acl := Config{Session: DefaultSession}, ""
	u, err := storeurl.Parse(raw, storeurl.Spec{
		Schemes: []string{"zookeeper"}, Port: "2181", CanTLS: true, NeedsUser: true, NeedsPassword: true,
		Params: map[string]func(string) error{
			"session": storeurl.Duration(&c.Session, time.Second, 10*time.Minute),
			"acl":     storeurl.Text(&acl),
		},
	})
	if err != nil {
		return Config{}, err
	}
	c.url, c.Servers, c.Timeout = u, u.Hosts, u.Timeout
	if c.Timeout == 0 {
		c.Timeout = min(DefaultTimeout, c.Session/4)
	}
	if c.Timeout > c.Session/2 {
		return Config{}, fmt.Errorf("parameter timeout: %v is more than half of the session's %v",
			c.Timeout, c.Session)
	}
	login := u.User != ""
	if strings.Contains(u.User, ":") {
		return Config{}, fmt.Errorf("there can be no colon in the user of ZooKeeper's digest login")
	}
	switch {
	case acl == "open", acl == "" && !login:
		c.Open = true
	case acl == "creator" && !login:
		return Config{}, fmt.Errorf("parameter acl: creator needs a user and a password")
	case acl != "creator" && acl != "":
		return Config{}, fmt.Errorf("parameter acl: %q is neither open nor creator", acl)
	}
	c.Chroot, err = cleanChroot(u.Path)
	return c, err
}

// cleanChroot checks the path of a URL.
func cleanChroot(path string) (string, error) {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return "", nil
	}
	if len(path) > maxChroot {
		return "", fmt.Errorf("its path is longer than %d bytes", maxChroot)
	}
	for e := range strings.SplitSeq(path[1:], "/") {
		switch {
		case e == "":
			return "", fmt.Errorf("its path %q has an empty element", path)
		case e == "." || e == ".." || e == internalDir:
			return "", fmt.Errorf("its path %q has the element %q, which cannot be", path, e)
		case !utf8.ValidString(e) || strings.ContainsFunc(e, forbidden):
			return "", fmt.Errorf("its path has characters that ZooKeeper does not allow")
		}
	}
	if path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") {
		return "", fmt.Errorf("its path is ZooKeeper's own, /zookeeper")
	}
	return path, nil
}

// login returns the digest login. Each call reads the password file. The login is empty without a
// user.
func (c *Config) login() ([]byte, error) {
	if c.url.User == "" {
		return nil, nil
	}
	user, pw, err := c.url.Credentials()
	return []byte(user + ":" + pw), err
}

// String returns the URL without its secrets.
func (c Config) String() string {
	q := url.Values{"session": {c.Session.String()}, "timeout": {c.Timeout.String()}}
	return c.url.Text(q)
}

// where describes the store in messages.
func (c *Config) where() string {
	return "zookeeper at " + strings.Join(c.Servers, ",")
}

// Name returns the path that Curator's InterProcessMutex needs for a lock of ours.
func (c Config) Name(lock string) string { return c.Chroot + "/" + escape(lock) }

// dial connects to one server, with TLS if the URL asks for it.
func (c *Config) dial(ctx context.Context, addr string) (net.Conn, error) {
	conf, err := c.url.TLS.Config(addr)
	if err != nil {
		return nil, err
	}
	return driverkit.Dial(ctx, new(net.Dialer), "tcp", addr, conf)
}
