package storeurl

import (
	"net/url"
	"strings"
)

// cut splits a URL around its user and password. ok is false if raw is no URL, or if it may contain
// a password in an unknown place.
func cut(raw string) (head, userinfo, rest string, ok bool) {
	scheme, after, found := strings.Cut(raw, "://")
	if !found {
		return raw, "", "", !strings.Contains(raw, "@")
	}
	end := len(after)
	if i := strings.IndexAny(after, "/?#"); i >= 0 {
		end = i
	}
	authority := after[:end]
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		return scheme + "://", authority[:at], after[at+1:], !strings.Contains(authority[:at], "@")
	}
	if authority == "" { // a path, such as a Unix socket's
		after, _, _ = strings.Cut(after, "?")
	}
	return scheme + "://", "", raw[len(scheme)+3:], !strings.Contains(after, "@")
}

// Redact returns a URL without its password, to be shown. If it may contain a password in an
// unknown place, Redact returns another text instead.
func Redact(raw string) string {
	head, info, rest, ok := cut(raw)
	if !ok {
		return "(not a URL)"
	}
	if info == "" {
		return head + rest
	}
	name, _, has := strings.Cut(info, ":")
	if has {
		name += ":xxxxx"
	}
	return head + name + "@" + rest
}

// HasPassword reports whether a URL contains a password, or may contain one.
func HasPassword(raw string) bool {
	_, info, _, ok := cut(raw)
	return !ok || strings.Contains(info, ":")
}

// NamesPassword reports whether a URL contains a password or names a file with one.
func NamesPassword(raw string) bool {
	_, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	return HasPassword(raw) || err == nil && q.Has("password_file")
}

// With returns a URL with a user, password and password file that are configured outside it. The
// URL's own parts take precedence. The result may contain a secret.
func With(raw, user, password, file string) string {
	head, info, rest, ok := cut(raw)
	if !ok || rest == "" {
		return raw // Parse reports the fault
	}
	name, pw, has := strings.Cut(info, ":")
	if name == "" {
		name = url.PathEscape(user)
	}
	if !has && password != "" {
		pw, has = escape(password), true
	}
	if has {
		name += ":" + pw
	}
	if name != "" {
		name += "@"
	}
	if file != "" {
		sep := "?"
		if strings.Contains(rest, "?") {
			sep = "&"
		}
		rest += sep + url.Values{"password_file": {file}}.Encode()
	}
	return head + name + rest
}

// escape encodes the characters that would end a password in a URL.
func escape(s string) string {
	r := strings.NewReplacer(":", "%3A", "@", "%40", ",", "%2C", "#", "%23", "?", "%3F")
	return r.Replace(url.PathEscape(s))
}
