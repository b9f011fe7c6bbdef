// Package storeurl reads the URLs that name stores:
//
//	scheme://[user[:password]@]host[:port][,host[:port]…][/path][?name=value&…]
//
// Every driver has the parameters timeout and password_file. Drivers with TLS also have ca, cert,
// key and server_name. All other parameters are the driver's own. No method shows the password of a
// URL.
package storeurl

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/upstream/nearest"
)

// Secret is a password. It never shows itself when printed or marshalled.
type Secret string

// String returns a text that is printed instead of the password.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "xxxxx"
}

// GoString returns a text that is printed instead of the password.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText returns a text that is written instead of the password.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Spec describes the URLs of a driver.
type Spec struct {
	Schemes []string // without TLS
	Secure  []string // with TLS
	// Port is the default port. It is empty if the URL has a path instead of hosts, such as a Unix
	// socket's.
	Port string
	// CanTLS allows TLS with a scheme of Schemes: by the parameter tls=true, or by one of ca, cert,
	// key and server_name.
	CanTLS bool
	// Timeout is the default of the parameter timeout. 0 leaves URL.Timeout 0.
	Timeout time.Duration
	// NeedsUser refuses a password without a user, and NeedsPassword a user without a password.
	NeedsUser, NeedsPassword bool
	// Params has a setter for each of the driver's own parameters.
	Params map[string]func(value string) error
}

// URL is a parsed store URL.
type URL struct {
	Scheme string
	Hosts  []string // host:port each, in order
	Path   string   // after the hosts, decoded, with its slash; may be empty

	User         string
	Password     Secret
	PasswordFile string // read by each call of Credentials, so that a password can change

	Timeout time.Duration
	TLS     TLS
}

// Parse reads raw. It connects to nothing and opens no file. Its errors show no secret.
func Parse(raw string, spec Spec) (*URL, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, errors.New("it needs the form scheme://…")
	}
	u := &URL{Scheme: scheme, Timeout: spec.Timeout}
	u.TLS.On = slices.Contains(spec.Secure, scheme)
	if !u.TLS.On && !slices.Contains(spec.Schemes, scheme) {
		known := strings.Join(slices.Concat(spec.Schemes, spec.Secure), ", ")
		return nil, fmt.Errorf("scheme %q is none of %s", scheme, known)
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("# is not allowed " + encode)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if authority != "" && !strings.Contains(authority, "@") &&
		strings.Contains(raw, "@") && !strings.Contains(query, "@") {
		// The seeming host may be a part of a password, so the error must not show it.
		return nil, errPassword
	}
	if slash {
		p, err := url.PathUnescape(path)
		if err != nil {
			return nil, errors.New("the path is malformed")
		}
		u.Path = "/" + p
	}
	if err := u.parseAuthority(authority, spec.Port); err != nil {
		return nil, err
	}
	if err := u.parseQuery(query, spec); err != nil {
		return nil, err
	}
	u.TLS.ByParameter = u.TLS.On && !slices.Contains(spec.Secure, scheme)
	return u, u.check(spec)
}

const encode = "(in a password, percent-encode all but letters and digits)"

var errPassword = errors.New("user or password is malformed " + encode)

func (u *URL) parseAuthority(authority, port string) error {
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		name, pw, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		u.User, err1 = url.PathUnescape(name)
		pw, err2 = url.PathUnescape(pw)
		if err1 != nil || err2 != nil || strings.ContainsAny(authority[:at], "@/?") {
			return errPassword
		}
		u.Password = Secret(pw)
	}
	if port == "" {
		if hosts != "" || len(u.Path) < 2 {
			return fmt.Errorf("it needs the form %s:///path", u.Scheme)
		}
		return nil
	}
	for h := range strings.SplitSeq(hosts, ",") {
		addr, err := hostPort(h, port)
		if err != nil {
			return err
		}
		if slices.Contains(u.Hosts, addr) {
			return fmt.Errorf("duplicate host %s", addr)
		}
		u.Hosts = append(u.Hosts, addr)
	}
	return nil
}

// hostPort returns the host and port of host[:port]. port is the default.
func hostPort(s, port string) (string, error) {
	host := s
	if strings.HasPrefix(s, "[") {
		in, after, ok := strings.Cut(s[1:], "]")
		valid := ok && (net.ParseIP(in) != nil || strings.Contains(in, "%"))
		if !valid || after != "" && after[0] != ':' {
			return "", fmt.Errorf("%q is not a host", s)
		}
		host = in
		if after != "" {
			port = after[1:]
		}
	} else if h, p, ok := strings.Cut(s, ":"); ok {
		host, port = h, p
	}
	if host == "" {
		return "", errors.New("it has no host")
	}
	if strings.ContainsAny(host, " \t\"<>{}|\\^`") ||
		strings.Contains(host, ":") && !strings.HasPrefix(s, "[") {
		return "", fmt.Errorf("%q is not a host", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port of a host is malformed " + encode)
	}
	return net.JoinHostPort(host, port), nil
}

func (u *URL) parseQuery(query string, spec Spec) error {
	q, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the text after the ? is malformed")
	}
	own := map[string]func(string) error{
		"timeout":       Duration(&u.Timeout, 10*time.Millisecond, time.Minute),
		"password_file": Text(&u.PasswordFile),
	}
	if spec.CanTLS || len(spec.Secure) > 0 {
		maps.Copy(own, u.TLS.params(spec.CanTLS))
	}
	maps.Copy(own, spec.Params)
	for _, name := range slices.Sorted(maps.Keys(q)) {
		set := own[name]
		if set == nil {
			return unknown(name, slices.Sorted(maps.Keys(own)))
		}
		if len(q[name]) != 1 {
			return fmt.Errorf("duplicate parameter %q", name)
		}
		if err := set(q[name][0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

// unknown returns the error of an unknown parameter. It names the known parameter with the nearest
// name, or else all of them.
func unknown(name string, known []string) error {
	if near := nearest.Of(name, known); near != "" {
		return fmt.Errorf("parameter %q is unknown; did you mean %q?", name, near)
	}
	return fmt.Errorf("parameter %q is unknown (known: %s)", name, strings.Join(known, ", "))
}

func (u *URL) check(spec Spec) error {
	if u.Password != "" && u.PasswordFile != "" {
		return errors.New("it has both a password and password_file")
	}
	password := u.Password != "" || u.PasswordFile != ""
	if spec.NeedsUser && u.User == "" && password {
		return errors.New("it has a password but no user")
	}
	if spec.NeedsPassword && u.User != "" && !password {
		return errors.New("it has a user but no password (user:password@ or password_file=)")
	}
	return u.TLS.check(spec)
}

// Credentials returns the present user and password. Each call reads the password file.
func (u *URL) Credentials() (user, password string, err error) {
	if u.PasswordFile == "" {
		return u.User, string(u.Password), nil
	}
	b, err := os.ReadFile(u.PasswordFile)
	if err != nil {
		return "", "", fmt.Errorf("read password file: %w", err)
	}
	return u.User, strings.TrimRight(string(b), "\r\n"), nil
}

// ReadFiles reads the files that the URL names. It returns the TLS configuration for a server at
// addr, as TLS.Config does.
func (u *URL) ReadFiles(addr string) (*tls.Config, error) {
	if _, _, err := u.Credentials(); err != nil {
		return nil, err
	}
	return u.TLS.Config(addr)
}

// Text returns the URL without its password, with parameters. It is empty if u is nil.
func (u *URL) Text(parameters url.Values) string {
	if u == nil {
		return ""
	}
	if u.TLS.ByParameter {
		parameters.Set("tls", "true")
	}
	if len(parameters) == 0 {
		return u.String()
	}
	return u.String() + "?" + parameters.Encode()
}

// String returns the URL without its password and its parameters.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.User != "" || u.Password != "" {
		b.WriteString(url.PathEscape(u.User))
		if u.Password != "" {
			b.WriteString(":" + u.Password.String())
		}
		b.WriteString("@")
	}
	b.WriteString(strings.Join(u.Hosts, ","))
	b.WriteString((&url.URL{Path: u.Path}).EscapedPath())
	return b.String()
}

// The following functions return setters of parameters.

// Text accepts any value.
func Text(dst *string) func(string) error {
	return func(v string) error { *dst = v; return nil }
}

// Duration accepts a duration with a unit, between lower and upper.
func Duration(dst *time.Duration, lower, upper time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 500ms or 2s", v)
		}
		if d < lower || d > upper {
			return fmt.Errorf("%v is not between %v and %v", d, lower, upper)
		}
		*dst = d
		return nil
	}
}

// Bool accepts true or false.
func Bool(dst *bool) func(string) error {
	return func(v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", v)
		}
		*dst = b
		return nil
	}
}

// Int accepts a whole number between lower and upper.
func Int(dst *int, lower, upper int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < lower || n > upper {
			return fmt.Errorf("%q is not a whole number between %d and %d", v, lower, upper)
		}
		*dst = n
		return nil
	}
}
