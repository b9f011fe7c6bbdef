package zookeeper

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// permitsDir is the node below own with the semaphores: no key of a lock is there.
const permitsDir = own + "/permits"

// permitsOf is the path of a semaphore's node.
func (s *Store) permitsOf(key string) string {
	return s.cfg.Chroot + "/" + permitsDir + "/" + escape(key)
}

// newPermitName is the name of a permit's node before ZooKeeper has put its number
// behind it: p, or t for a try, the session's id, the token and the limit it was
// asked for with. They are short, as all of them are read at once.
func newPermitName(sid int64, token uint64, limit uint32, try bool) string {
	kind := "p"
	if try {
		kind = "t"
	}
	return fmt.Sprintf("%s-%x-%x-%d-", kind, uint64(sid), token, limit)
}

// parsePermit reads the name of a semaphore's child. What is none of ours holds
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
	if kind != "p" && kind != "t" || err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(seq) < 10 || tok > maxToken || lim == 0 {
		return n, false
	}
	return node{name: name, seq: int32(num), ours: true, sid: int64(id), try: kind == "t", token: tok, limit: uint32(lim)}, true
}

// readPermits is the permits among children, in the order in which they came.
func readPermits(children []string) []node {
	q := make([]node, 0, len(children))
	for _, c := range children {
		if n, ok := parsePermit(c); ok {
			q = append(q, n)
		}
	}
	slices.SortFunc(q, bySeq)
	return q
}
