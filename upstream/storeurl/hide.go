package storeurl

import (
	"net/url"
	"strings"
)

// pieces cuts a URL around who we are in it. ok is false for what is no URL, or
// may have a password where nobody can tell.
func pieces(raw string) (head, userinfo, rest string, ok bool) {
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
	if authority == "" { // a path, as of a Unix socket
		after, _, _ = strings.Cut(after, "?")
	}
	return scheme + "://", "", raw[len(scheme)+3:], !strings.Contains(after, "@")
}

// Redact is a URL without its password, for people to see. What may have one
// where nobody can tell is not shown at all.
func Redact(raw string) string {
	head, info, rest, ok := pieces(raw)
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

// HasPassword says whether a password stands in a URL, as far as can be told.
func HasPassword(raw string) bool {
	_, info, _, ok := pieces(raw)
	return !ok || strings.Contains(info, ":")
}

// NamesPassword says whether a URL has a password or names a file with one.
func NamesPassword(raw string) bool {
	_, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	return HasPassword(raw) || err == nil && q.Has("password_file")
}

// With is a URL with the user, the password and the password file that stand beside
// it, where it has none itself. It may hold a secret.
func With(raw, user, password, file string) string {
	head, info, rest, ok := pieces(raw)
	if !ok || rest == "" {
		return raw // Parse says what is wrong with it
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

// escape leaves nothing in a password that ends it early.
func escape(s string) string {
	return strings.NewReplacer(":", "%3A", "@", "%40", ",", "%2C", "#", "%23", "?", "%3F").Replace(url.PathEscape(s))
}
