package zookeeper

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cache"
)

// own is the node beside the locks with what is ours alone: a node for each
// session. No lock has its name.
const own = ".locksidecar"

// forbidden says that ZooKeeper allows no such character in a path. Its servers
// look at UTF-16, so all that takes two units there is among them.
func forbidden(r rune) bool {
	return r <= 0x1f || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// escape makes a lock's name one element of a path: what cannot stand there is
// percent-encoded, byte by byte.
func escape(key string) string {
	if key == "." || key == ".." || key == "zookeeper" || key == own {
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

// unescape is what escape was given; a name that is nobody's escape is itself.
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

// maxToken bounds the numbers of tokens: the rest of a name's UUID is taken.
const maxToken = 1<<56 - 1

// node is a child of a lock's node: one that holds the lock or waits for it.
type node struct {
	name string
	seq  int32
	ours bool // made by a locksidecar; what follows is only known of those
	sid  int64
	// shared is how it was asked for; an exclusive one may have been downgraded
	// since, which stands in its data alone.
	shared bool
	try    bool   // asked for by one that does not wait, or for a moment only
	limit  uint32 // of a permit: what it was made with
	token  uint64
}

// newName is the name of a node before ZooKeeper has put its number behind it.
// The UUID is of version 8, so that none of Curator's (version 4) can be mistaken
// for it: the session's id, then whether it is a try and whether it is shared, then
// the token.
func newName(sid int64, token uint64, mode cache.Mode, try bool) string {
	id := uint64(sid)
	low := uint64(2)<<62 | id&0xf<<58 | token
	if mode == cache.Shared {
		low |= 1 << 56
	}
	if try {
		low |= 1 << 57
	}
	return fmt.Sprintf("_c_%08x-%04x-8%03x-%04x-%012x-lock-", id>>32, id>>16&0xffff, id>>4&0xfff, low>>48, low&(1<<48-1))
}

const uuidLen = 36

// parseNode reads a child's name. It is no contender when no number stands at its
// end: the locks of Curator, of kazoo and of the Go client all have one.
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
	if !pre || len(uuid) < uuidLen+len("-lock-") || uuid[uuidLen:uuidLen+len("-lock-")] != "-lock-" {
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

// readQueue is the contenders among children, in their order. Numbers wrap
// around.
func readQueue(children []string) []node {
	q := make([]node, 0, len(children))
	for _, c := range children {
		if n, ok := parseNode(c); ok {
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

// Data of our nodes, for people and for the mode: "locksidecar", the mode, the host.
func nodeData(mode cache.Mode, host string) []byte {
	return []byte("locksidecar " + mode.String() + " " + host)
}

// dataShared says whether the data of one of our nodes says that it is shared.
func dataShared(b []byte) bool {
	return string(b) == "locksidecar shared" || strings.HasPrefix(string(b), "locksidecar shared ")
}

// heldData is the data of a permit's node whose holder has waited.
func heldData(host string) []byte { return []byte("locksidecar held " + host) }

// dataHeld says whether the data of a permit's node says that it does not wait any
// more. It may also be so when it says nothing.
func dataHeld(b []byte) bool { return strings.HasPrefix(string(b), "locksidecar held ") }

// dataHost is the host in the data of one of our nodes.
func dataHost(b []byte) string {
	f := strings.Fields(string(b))
	if len(f) == 3 && f[0] == "locksidecar" {
		return f[2]
	}
	return ""
}
