package etcd

import (
	"strconv"
	"strings"
)

// The values of our keys. Whoever has another value, as concurrency.Mutex has an
// empty one, holds or wants the lock alone.
const (
	valueExclusive = "locksidecar:exclusive"
	valueBrief     = "locksidecar:brief" // a writer's too, with a short-lived entry
	valueShared    = "locksidecar:shared"
	valuePermit    = "locksidecar:permit:"
)

// sessionDir holds a key for each daemon's session. No lock's name looks like
// that: a percent sign in one is encoded.
const sessionDir = "%session"

// permitDir holds the keys of semaphores. Neither does it.
const permitDir = "%permit"

// names are the names under a prefix.
type names struct {
	root string // prefix and a slash
}

var escape = strings.NewReplacer("%", "%25", "/", "%2F")

// dir is what the keys of a lock begin with. Their range is [dir, dirEnd(dir)).
func (n *names) dir(lock string) string { return n.root + escaped(lock) + "/" }

func escaped(name string) string {
	if strings.ContainsAny(name, "%/") {
		return escape.Replace(name)
	}
	return name
}

// permits are what the keys of a semaphore's holders begin with, and of those that
// queue for it.
func (n *names) permits(key string) (held, queue string) {
	key = escaped(key) + "/"
	return n.root + permitDir + "/held/" + key, n.root + permitDir + "/queue/" + key
}

// semaphore is the semaphore that a key belongs to, with what its keys of that kind
// begin with.
func (n *names) semaphore(key string) (name, dir string, held, ok bool) {
	rest, ok := strings.CutPrefix(key, n.root+permitDir+"/")
	if !ok {
		return "", "", false, false
	}
	kind, rest, _ := strings.Cut(rest, "/")
	name, _, ok = strings.Cut(rest, "/")
	held = kind == "held"
	if !ok || name == "" || !held && kind != "queue" {
		return "", "", false, false
	}
	return unescape.Replace(name), n.root + permitDir + "/" + kind + "/" + name + "/", held, true
}

// permitValue is the value of a token's keys in a semaphore. No two tokens of a
// session have the same.
func permitValue(token uint64) string { return valuePermit + strconv.FormatUint(token, 16) }

// permitToken is the token of a value; 0 when it is not one of ours.
func permitToken(value string) uint64 {
	hex, ok := strings.CutPrefix(value, valuePermit)
	if !ok {
		return 0
	}
	t, _ := strconv.ParseUint(hex, 16, 64)
	return t
}

// slotBits of a permit's base say which of those it is that were created in one
// transaction: these have the same create revision.
const slotBits = 8

// permitBase is the fence base of the permit whose key has that slot.
func permitBase(rev int64, slot int) uint64 {
	return uint64(rev)<<slotBits | uint64(slot)&(1<<slotBits-1)
}

// dirEnd is the first key behind those that begin with dir, which ends in a slash.
func dirEnd(dir string) string { return dir[:len(dir)-1] + "0" }

// rangeEnd is dirEnd for requests.
func rangeEnd(dir string) []byte {
	b := []byte(dir)
	b[len(b)-1]++
	return b
}

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
	if !ok || name == "" || name == sessionDir || name == permitDir {
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
