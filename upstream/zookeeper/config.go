package zookeeper

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/upstream/storeurl"
)

// What a Config has unless its URL says otherwise. The timeout is never more than
// a quarter of the session.
const (
	DefaultSession = 10 * time.Second
	DefaultTimeout = 2 * time.Second
)

// maxChroot bounds the chroot path, so that a full batch stays well below the
// server's jute.maxbuffer of 1 MB.
const maxChroot = 256

// Config says which ZooKeeper to use and how. Parse makes it from a URL.
type Config struct {
	url     *storeurl.URL
	Servers []string      // host:port each
	Chroot  string        // the locks' common path: empty, or "/a/b"
	Session time.Duration // asked for; what counts is what the server grants
	Timeout time.Duration // of one batch, and of connecting to one server
	Open    bool          // nodes are made for everybody, not for our user alone
}

// Parse understands zookeeper://[user:password@]host[:port][,host[:port]…][/chroot/path]
// with the parameters session, timeout, acl (open or creator), password_file, and for
// TLS tls, ca, cert, key and server_name. It connects to nothing and opens no file;
// its errors are ErrConfig and show no secret.
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
		Schemes: []string{"zookeeper"}, Port: "2181", CanTLS: true,
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
		return Config{}, fmt.Errorf("parameter timeout: %v is more than half of the session's %v", c.Timeout, c.Session)
	}
	login := u.User != ""
	if !login && (u.Password != "" || u.PasswordFile != "") {
		return Config{}, fmt.Errorf("there is a password but no user")
	}
	if login && u.Password == "" && u.PasswordFile == "" {
		return Config{}, fmt.Errorf("there is a user but no password for it (user:password@, password_file=)")
	}
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

// cleanChroot checks what stands behind the hosts.
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
		case e == "." || e == ".." || e == own:
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

// login is the digest login as it is now; empty without one.
func (c *Config) login() ([]byte, error) {
	if c.url.User == "" {
		return nil, nil
	}
	user, pw, err := c.url.Credentials()
	return []byte(user + ":" + pw), err
}

// String is the URL without its secrets.
func (c Config) String() string {
	if c.url == nil {
		return ""
	}
	q := url.Values{"session": {c.Session.String()}, "timeout": {c.Timeout.String()}}
	if c.url.TLS.On {
		q.Set("tls", "true")
	}
	return c.url.String() + "?" + q.Encode()
}

// where names the store in messages.
func (c *Config) where() string {
	return "zookeeper at " + strings.Join(c.Servers, ",")
}
