package zookeeper

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cache"
)

// internalDir is the node beside the locks that has all of this driver's other nodes, such as one
// for each session. No lock has this name.
const internalDir = ".locksidecar"

// forbidden reports whether ZooKeeper forbids r in a path. Its servers check UTF-16 units, so this
// includes all characters that need two units.
func forbidden(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// escape turns the name of a lock into one element of a path. It percent-encodes the bytes of
// characters that cannot be in one.
func escape(key string) string {
	if key == "." || key == ".." || key == "zookeeper" || key == internalDir {
		return fmt.Sprintf("%%%02X", key[0]) + strings.ReplaceAll(key[1:], ".", "%2E")
	}
	if !strings.ContainsFunc(key, mustEscape) && utf8.ValidString(key) {
		return key
	}
	var b strings.Builder
	for i, r := range key {
		n := utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, n = utf8.DecodeRuneInString(key[i:])
		}
		if mustEscape(r) {
			for _, c := range []byte(key[i : i+n]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(key[i : i+n])
		}
	}
	return b.String()
}

func mustEscape(r rune) bool { return r == '/' || r == '%' || forbidden(r) }

// unescape reverses escape. It returns any other name unchanged.
func unescape(name string) string {
	if !strings.Contains(name, "%") {
		return name
	}
	b := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b = append(b, name[i])
			continue
		}
		if i+2 >= len(name) {
			return name
		}
		c, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return name
		}
		b = append(b, byte(c))
		i += 2
	}
	return string(b)
}

// maxToken is the largest token, because the name's UUID uses its other bits for something else.
const maxToken = 1<<56 - 1

// node is a child of a lock's or semaphore's node: one that holds it or waits for it.
type node struct {
	name string
	seq  int32
	ours bool // made by a locksidecar; otherwise the fields below are not set
	sid  int64
	// shared is the mode in the name. An exclusive node may have been downgraded since; only its
	// data shows that.
	shared bool
	try    bool   // its owner does not wait, or only for a moment
	limit  uint32 // of a permit: the limit in its name
	token  uint64
}

// newName returns the name of a node without the number that ZooKeeper appends. The UUID is of
// version 8, so it cannot be confused with one of Curator's (version 4). It has the session's id,
// whether it is a try, whether it is shared, and the token.
func newName(sid int64, token uint64, mode cache.Mode, try bool) string {
	id := uint64(sid)
	low := uint64(2)<<62 | id&0xf<<58 | token
	if mode == cache.Shared {
		low |= 1 << 56
	}
	if try {
		low |= 1 << 57
	}
	return fmt.Sprintf("_c_%08x-%04x-8%03x-%04x-%012x-lock-",
		id>>32, id>>16&0xffff, id>>4&0xfff, low>>48, low&(1<<48-1))
}

const uuidLen = 36

// parseNode reads the name of a child. A child without a number at the end of its name is no
// contender: the nodes of Curator, kazoo and the Go client all have one.
func parseNode(name string) (n node, ok bool) {
	n.name = name
	seq := name
	if at := strings.LastIndex(name, "lock-"); at >= 0 {
		seq = name[at+len("lock-"):]
	} else if len(name) >= 10 {
		seq = name[len(name)-10:]
	}
	v, err := strconv.ParseInt(seq, 10, 32)
	if err != nil || len(seq) < 10 {
		return n, false
	}
	n.seq = int32(v)
	uuid, pre := strings.CutPrefix(name, "_c_")
	if !pre || len(uuid) < uuidLen || !strings.HasPrefix(uuid[uuidLen:], "-lock-") {
		return n, true
	}
	n.parseUUID(uuid[:uuidLen])
	return n, true
}

func (n *node) parseUUID(s string) {
	if s[8] != '-' || s[13] != '-' || s[14] != '8' || s[18] != '-' || s[23] != '-' {
		return
	}
	hi, err1 := strconv.ParseUint(s[:8]+s[9:13]+s[15:18], 16, 64)
	low, err2 := strconv.ParseUint(s[19:23]+s[24:], 16, 64)
	if err1 != nil || err2 != nil || low>>62 != 2 {
		return
	}
	n.ours = true
	n.sid = int64(hi<<4 | low>>58&0xf)
	n.shared, n.try = low>>56&1 != 0, low>>57&1 != 0
	n.token = low & maxToken
}

// readQueue returns the contenders among children in their order, with parseNode for a lock or
// parsePermit for a semaphore. Numbers wrap around.
func readQueue(children []string, parse func(string) (node, bool)) []node {
	q := make([]node, 0, len(children))
	for _, c := range children {
		if n, ok := parse(c); ok {
			q = append(q, n)
		}
	}
	slices.SortFunc(q, bySeq)
	return q
}

func bySeq(a, b node) int {
	if a.seq != b.seq {
		return int(a.seq - b.seq)
	}
	return strings.Compare(a.name, b.name)
}

// nodeData returns the data of a node: "locksidecar", the mode and the host. Only the mode has a
// meaning to the driver.
func nodeData(mode cache.Mode, host string) []byte {
	return []byte("locksidecar " + mode.String() + " " + host)
}

// dataShared reports whether the data of one of our nodes has the shared mode.
func dataShared(b []byte) bool {
	return string(b) == "locksidecar shared" || strings.HasPrefix(string(b), "locksidecar shared ")
}

// heldData returns the data of a permit's node whose holder has waited.
func heldData(host string) []byte { return []byte("locksidecar held " + host) }

// dataHeld reports whether the data of a permit's node says that it is held. A node without this
// data may be held, too.
func dataHeld(b []byte) bool { return strings.HasPrefix(string(b), "locksidecar held ") }

// dataHost returns the host in the data of one of our nodes.
func dataHost(b []byte) string {
	f := strings.Fields(string(b))
	if len(f) == 3 && f[0] == "locksidecar" {
		return f[2]
	}
	return ""
}

// parentOf returns the path of a lock's node.
func (s *Store) parentOf(key string) string { return s.cfg.Chroot + "/" + escape(key) }

// keyOf returns the key of the lock whose node has the given name. ok is false if no lock has this
// name.
func keyOf(name string) (key string, ok bool) {
	if name == internalDir || name == "zookeeper" {
		return "", false
	}
	return unescape(name), !strings.Contains(name, "/")
}
