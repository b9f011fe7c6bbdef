package etcd

import (
	"strconv"
	"strings"
)

// The values of our keys. Whoever has another value, as concurrency.Mutex has an
// empty one, holds or wants the lock alone.
const (
	valueExclusive = "locksidecar:exclusive"
	valueShared    = "locksidecar:shared"
)

// sessionDir holds a key for each daemon's session. No lock's name looks like
// that: a percent sign in one is encoded.
const sessionDir = "%session"

// names are the names under a prefix.
type names struct {
	root string // prefix and a slash
}

var escape = strings.NewReplacer("%", "%25", "/", "%2F")

// dir is what the keys of a lock begin with. Their range is [dir, dirEnd(dir)).
func (n *names) dir(lock string) string {
	if strings.ContainsAny(lock, "%/") {
		lock = escape.Replace(lock)
	}
	return n.root + lock + "/"
}

// dirEnd is the first key behind those that begin with dir, which ends in a slash.
func dirEnd(dir string) string { return dir[:len(dir)-1] + "0" }

// key is a token's key: the lease in hexadecimal, as concurrency.Mutex has it,
// and the token's number.
func key(dir string, lease int64, token uint64) string {
	b := make([]byte, 0, len(dir)+32)
	b = append(b, dir...)
	b = strconv.AppendInt(b, lease, 16)
	b = append(b, '-')
	return string(strconv.AppendUint(b, token, 16))
}

// session is the key of a session.
func (n *names) session(lease int64) string {
	return n.root + sessionDir + "/" + strconv.FormatInt(lease, 16)
}

// behind is the first key behind all of ours.
func (n *names) behind() string { return dirEnd(n.root) }

var unescape = strings.NewReplacer("%25", "%", "%2F", "/")

// lock is the lock that a key belongs to, with what its keys begin with. A key of
// ours, and one of concurrency.Mutex, has no slash behind the lock's name; of a
// foreign one only the part up to the first slash counts.
func (n *names) lock(key string) (lock, dir string, ok bool) {
	rest, ok := strings.CutPrefix(key, n.root)
	if !ok {
		return "", "", false
	}
	name, _, ok := strings.Cut(rest, "/")
	if !ok || name == "" || name == sessionDir {
		return "", "", false
	}
	return unescape.Replace(name), n.root + name + "/", true
}

// holder takes a key's last part apart. token is 0 and ours false when it is not
// one of a locksidecar.
func holder(key, dir string) (lease int64, token uint64, ours bool) {
	l, t, ok := strings.Cut(key[len(dir):], "-")
	if !ok {
		return 0, 0, false
	}
	lease, err1 := strconv.ParseInt(l, 16, 64)
	token, err2 := strconv.ParseUint(t, 16, 64)
	return lease, token, err1 == nil && err2 == nil
}
