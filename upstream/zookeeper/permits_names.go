package zookeeper

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// permitsDir is the node below internalDir that has the semaphores. No lock is there.
const permitsDir = internalDir + "/permits"

// permitsOf returns the path of a semaphore's node.
func (s *Store) permitsOf(key string) string {
	return s.cfg.Chroot + "/" + permitsDir + "/" + escape(key)
}

// newPermitName returns the name of a permit's node without the number that ZooKeeper appends. It
// has p, or t for a try, the session's id, the token, and the limit of the acquire. The names are
// short, because each reading reads all of them.
func newPermitName(sid int64, token uint64, limit uint32, try bool) string {
	kind := "p"
	if try {
		kind = "t"
	}
	return fmt.Sprintf("%s-%x-%x-%d-", kind, uint64(sid), token, limit)
}

// parsePermit reads the name of a semaphore's child. A child with another form of name holds
// nothing.
func parsePermit(name string) (n node, ok bool) {
	kind, rest, _ := strings.Cut(name, "-")
	sid, rest, _ := strings.Cut(rest, "-")
	token, rest, _ := strings.Cut(rest, "-")
	limit, seq, _ := strings.Cut(rest, "-")
	id, err1 := strconv.ParseUint(sid, 16, 64)
	tok, err2 := strconv.ParseUint(token, 16, 64)
	lim, err3 := strconv.ParseUint(limit, 10, 32)
	num, err4 := strconv.ParseInt(seq, 10, 32)
	if kind != "p" && kind != "t" || cmp.Or(err1, err2, err3, err4) != nil || len(seq) < 10 ||
		tok > maxToken || lim == 0 {
		return n, false
	}
	return node{name: name, seq: int32(num), ours: true, sid: int64(id), try: kind == "t",
		token: tok, limit: uint32(lim)}, true
}
