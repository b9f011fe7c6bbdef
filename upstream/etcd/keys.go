package etcd

import (
	"strconv"
	"strings"
)

// The values of our keys. A key with any other value, such as the empty one of concurrency.Mutex,
// is a writer's.
const (
	valueExclusive  = "locksidecar:exclusive"
	valueShortLived = "locksidecar:brief" // a writer's short-lived entry
	valueShared     = "locksidecar:shared"
	valuePermit     = "locksidecar:permit:"
)

// sessionDir holds a key for each daemon's session. No lock's name is encoded like this, because a
// percent sign in a name becomes %25.
const sessionDir = "%session"

// permitDir holds the keys of semaphores. No lock's name is encoded like this either.
const permitDir = "%permit"

// names makes the names of keys under a prefix.
type names struct {
	root string // prefix and a slash
}

var escape = strings.NewReplacer("%", "%25", "/", "%2F")

// dir returns the prefix of the keys of a lock. Their range is [dir, dirEnd(dir)).
func (n *names) dir(lock string) string { return n.root + escaped(lock) + "/" }

func escaped(name string) string {
	if strings.ContainsAny(name, "%/") {
		return escape.Replace(name)
	}
	return name
}

// permits returns the prefixes of a semaphore's keys: of its holders, and of its queue.
func (n *names) permits(key string) (held, queue string) {
	key = escaped(key) + "/"
	return n.root + permitDir + "/held/" + key, n.root + permitDir + "/queue/" + key
}

// semaphore returns the semaphore that a key belongs to. dir is the prefix of its keys of the same
// kind, and held reports whether these are the keys of holders.
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

// permitValue returns the value of a token's keys in a semaphore. No two tokens of a session have
// the same value.
func permitValue(token uint64) string { return valuePermit + strconv.FormatUint(token, 16) }

// permitToken returns the token of a value, or 0 if the value is not one of ours.
func permitToken(value string) uint64 {
	hex, ok := strings.CutPrefix(value, valuePermit)
	if !ok {
		return 0
	}
	t, _ := strconv.ParseUint(hex, 16, 64)
	return t
}

// slotBits is the number of bits of a permit's base that have the slot. By them, the bases of
// permits differ that one transaction has created and that so have one create revision.
const slotBits = 8

// permitBase returns the fence base of a permit whose key has the given slot.
func permitBase(rev int64, slot int) uint64 {
	return uint64(rev)<<slotBits | uint64(slot)&(1<<slotBits-1)
}

// dirEnd returns the first key after all keys that begin with dir, which ends in a slash.
func dirEnd(dir string) string { return dir[:len(dir)-1] + "0" }

// rangeEnd returns dirEnd as the end of a range in a request.
func rangeEnd(dir string) []byte {
	b := []byte(dir)
	b[len(b)-1]++
	return b
}

// key returns a token's key. It has the lease in hexadecimal, as in the keys of concurrency.Mutex,
// and the token's number.
func key(dir string, lease int64, token uint64) string {
	b := make([]byte, 0, len(dir)+32)
	b = append(b, dir...)
	b = strconv.AppendInt(b, lease, 16)
	b = append(b, '-')
	return string(strconv.AppendUint(b, token, 16))
}

// session returns the key of a session.
func (n *names) session(lease int64) string {
	return n.root + sessionDir + "/" + strconv.FormatInt(lease, 16)
}

// behind returns the first key after all of ours.
func (n *names) behind() string { return dirEnd(n.root) }

var unescape = strings.NewReplacer("%25", "%", "%2F", "/")

// lock returns the lock that a key belongs to, and the prefix of its keys. Our keys and the keys of
// concurrency.Mutex have no slash after the lock's name. Of any other key, only the part up to the
// first slash counts.
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

// holder parses a key's last part. ours is false, and token 0, if the key is not a locksidecar's.
func holder(key, dir string) (lease int64, token uint64, ours bool) {
	l, t, ok := strings.Cut(key[len(dir):], "-")
	if !ok {
		return 0, 0, false
	}
	lease, err1 := strconv.ParseInt(l, 16, 64)
	token, err2 := strconv.ParseUint(t, 16, 64)
	return lease, token, err1 == nil && err2 == nil
}

// Name returns the name by which etcdctl lock and concurrency.NewMutex know a lock of ours.
func (c Config) Name(lock string) string {
	return strings.TrimSuffix((&names{root: c.Prefix + "/"}).dir(lock), "/")
}
