// Package storeurl reads the URLs that name stores:
//
//	scheme://[user[:password]@]host[:port][,host[:port]…][/path][?name=value&…]
//
// Every driver has the parameters timeout and password_file, and where there is
// TLS ca, cert, key and server_name; the rest are its own. A URL shows its
// password to nobody.
package storeurl

import (
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

// String is what is printed in its stead.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "xxxxx"
}

// GoString is what is printed in its stead.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText is what is marshalled in its stead.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Spec says what a driver's URLs look like.
type Spec struct {
	Schemes []string // without TLS
	Secure  []string // with TLS
	Port    string   // where a host names none; empty when the URL has no hosts but a path, as for a Unix socket
	// CanTLS lets the parameter tls=true, or one of ca, cert, key and server_name,
	// stand for a scheme of Secure.
	CanTLS bool
	Params map[string]func(value string) error // the driver's own parameters
}

// URL is a store's URL, read.
type URL struct {
	Scheme string
	Hosts  []string // host:port each, in their order
	Path   string   // behind the hosts, decoded, with its slash; may be empty

	User         string
	Password     Secret
	PasswordFile string // read anew by Credentials, so that a password can change

	Timeout time.Duration // 0 when not given
	TLS     TLS
}

// Parse reads raw. It connects to nothing and opens no file; its errors show no
// secret.
func Parse(raw string, spec Spec) (*URL, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, errors.New("it needs the form scheme://…")
	}
	u := &URL{Scheme: scheme, TLS: TLS{On: slices.Contains(spec.Secure, scheme)}}
	if !u.TLS.On && !slices.Contains(spec.Schemes, scheme) {
		return nil, fmt.Errorf("scheme %q is none of %s", scheme, strings.Join(slices.Concat(spec.Schemes, spec.Secure), ", "))
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("there can be no # in it (in a password, percent-encode what is not a letter or digit)")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if authority != "" && !strings.Contains(authority, "@") && strings.Contains(raw, "@") && !strings.Contains(query, "@") {
		// What looks like a host may be a part of a password: it is not to be named.
		return nil, errPassword
	}
	if slash {
		p, err := url.PathUnescape(path)
		if err != nil {
			return nil, errors.New("its path is not well-formed")
		}
		u.Path = "/" + p
	}
	if err := u.parseAuthority(authority, spec.Port); err != nil {
		return nil, err
	}
	if err := u.parseQuery(query, spec); err != nil {
		return nil, err
	}
	return u, u.check(spec)
}

var errPassword = errors.New("its user or password is not well-formed (percent-encode what is not a letter or digit)")

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
			return fmt.Errorf("host %s stands there twice", addr)
		}
		u.Hosts = append(u.Hosts, addr)
	}
	return nil
}

// hostPort is host[:port], with the port that it has when it names none.
func hostPort(s, port string) (string, error) {
	host := s
	if strings.HasPrefix(s, "[") {
		in, after, ok := strings.Cut(s[1:], "]")
		if !ok || net.ParseIP(in) == nil && !strings.Contains(in, "%") || after != "" && after[0] != ':' {
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
		return "", errors.New("there is no host in it")
	}
	if strings.ContainsAny(host, " \t\"<>{}|\\^`") || strings.Contains(host, ":") && !strings.HasPrefix(s, "[") {
		return "", fmt.Errorf("%q is not a host", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port of a host is not a port (in a password, percent-encode what is not a letter or digit)")
	}
	return net.JoinHostPort(host, port), nil
}

func (u *URL) parseQuery(query string, spec Spec) error {
	q, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows the ? is not well-formed")
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
			return fmt.Errorf("parameter %q stands there twice", name)
		}
		if err := set(q[name][0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

// unknown is the error of an unknown parameter. It names the known one with the nearest name, or else all.
func unknown(name string, known []string) error {
	if near := nearest.Of(name, known); near != "" {
		return fmt.Errorf("parameter %q is unknown; did you mean %q?", name, near)
	}
	return fmt.Errorf("parameter %q is unknown (known: %s)", name, strings.Join(known, ", "))
}

func (u *URL) check(spec Spec) error {
	if u.Password != "" && u.PasswordFile != "" {
		return errors.New("there is both a password and password_file in it")
	}
	return u.TLS.check(spec)
}

// Credentials are the user and the password as they are now: a password file is
// read with each call.
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

// String is the URL without its password and its parameters.
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

// Setters of parameters.

// Text takes any value.
func Text(dst *string) func(string) error {
	return func(v string) error { *dst = v; return nil }
}

// Duration takes a duration with a unit, within bounds.
func Duration(dst *time.Duration, least, most time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 500ms or 2s", v)
		}
		if d < least || d > most {
			return fmt.Errorf("%v is not between %v and %v", d, least, most)
		}
		*dst = d
		return nil
	}
}

// Bool takes true or false.
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

// Int takes a whole number within bounds.
func Int(dst *int, least, most int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is not a whole number between %d and %d", v, least, most)
		}
		*dst = n
		return nil
	}
}
