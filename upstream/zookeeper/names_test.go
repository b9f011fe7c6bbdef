package zookeeper

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

func FuzzEscape(f *testing.F) {
	for _, k := range []string{"a", ".", "..", "...", ".a", "zookeeper", "zookeepers", internalDir,
		"a/b", "%2F", "a%", "\x00", "\u007f\u009f", "\ue000", "\ufffd", "😀", "\xff\xfe", "日本"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		name := escape(key)
		if key == "" {
			return
		}
		if name == "." || name == ".." || name == internalDir || name == "zookeeper" ||
			strings.Contains(name, "/") || strings.ContainsFunc(name, forbidden) {
			t.Errorf("%q becomes %q", key, name)
		}
		if back, ok := keyOf(name); back != key || !ok {
			t.Errorf("%q becomes %q becomes %q", key, name, back)
		}
	})
}

func FuzzParseNode(f *testing.F) {
	f.Add("_c_0a0a0a0a-0000-4000-8000-000000000000-lock-0000000001")
	f.Add(newName(-1, maxToken, cache.Shared, true) + "0000000001")
	f.Add("lock--2147483648")
	f.Add("_c_-lock-")
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := parseNode(name)
		if n.ours && (!ok || !strings.HasPrefix(name,
			strings.ToLower(newName(n.sid, n.token, modeOf(n), n.try))[:3])) {
			t.Errorf("%q is ours", name)
		}
	})
}

func modeOf(n node) cache.Mode {
	if n.shared {
		return cache.Shared
	}
	return cache.Exclusive
}

func TestNodeNames(t *testing.T) {
	for _, sid := range []int64{1, -1, math.MinInt64, math.MaxInt64, 0x0123456789abcdef,
		0x100000a1b2c30001} {
		for _, token := range []uint64{0, 1, 1<<48 + 7, maxToken} {
			for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
				for _, try := range []bool{false, true} {
					name := newName(sid, token, mode, try) + "0000000042"
					n, ok := parseNode(name)
					if want := (node{name: name, seq: 42, ours: true, sid: sid, token: token,
						shared: mode == cache.Shared, try: try}); !ok || n != want {
						t.Fatalf("%s is %+v, not %+v", name, n, want)
					}
					if len(name) != len("_c_")+uuidLen+len("-lock-")+10 {
						t.Fatalf("%s is not as long as Curator's", name)
					}
				}
			}
		}
	}
	for _, foreign := range []string{"_c_0a0a0a0a-0000-4000-8000-000000000000-lock-0000000001",
		"_c_0123456789abcdef0123456789abcdef-lock-0000000001", "lock-0000000001"} {
		if n, ok := parseNode(foreign); !ok || n.ours || n.seq != 1 {
			t.Errorf("%s is %+v", foreign, n)
		}
	}
	for _, none := range []string{"", "lock-", "config", "lock-00000000x1", "12345"} {
		if n, ok := parseNode(none); ok {
			t.Errorf("%s is %+v", none, n)
		}
	}
}

func TestOrderOutlivesTheNumbers(t *testing.T) {
	q := readQueue([]string{"lock--2147483647", "x", "lock-2147483647", "lock--2147483648",
		"lock-2147483646"}, parseNode)
	var order []string
	for _, n := range q {
		order = append(order, n.name)
	}
	if want := []string{"lock-2147483646", "lock-2147483647", "lock--2147483648",
		"lock--2147483647"}; !slices.Equal(order, want) {
		t.Errorf("the order is %v", order)
	}
}

// queueOf makes a queue from letters. x and s are our exclusive and shared nodes, t and u are
// exclusive and shared tries, and f is a foreign node.
func queueOf(letters string) (q []node) {
	for i, c := range letters {
		q = append(q, node{seq: int32(i), ours: c != 'f', sid: int64(i), shared: c == 's' || c == 'u',
			try: c == 't' || c == 'u'})
	}
	return q
}

func TestWhoBlocksWhom(t *testing.T) {
	for _, c := range []struct {
		queue  string
		at     int
		mode   cache.Mode
		before int
		unsure bool
		wanted bool
	}{
		{"x", 0, cache.Exclusive, -1, false, false},
		{"xx", 0, cache.Exclusive, -1, false, true},
		{"xt", 0, cache.Exclusive, -1, false, false},
		{"xtf", 0, cache.Exclusive, -1, false, true},
		{"xs", 0, cache.Exclusive, -1, false, true},
		{"xx", 1, cache.Exclusive, 0, false, false},
		{"ss", 1, cache.Exclusive, 0, false, false},
		{"sss", 1, cache.Shared, -1, false, false},
		{"sssx", 1, cache.Shared, -1, false, true},
		{"sssf", 1, cache.Shared, -1, false, true},
		{"ssst", 1, cache.Shared, -1, false, false},
		{"xs", 1, cache.Shared, 0, true, false},
		{"xsss", 3, cache.Shared, 0, true, false},
		{"sxs", 2, cache.Shared, 1, false, false},
		{"fs", 1, cache.Shared, 0, false, false},
		{"xfs", 2, cache.Shared, 1, false, false},
		{"xsxs", 3, cache.Shared, 2, false, false},
	} {
		q := queueOf(c.queue)
		before, unsure := blocker(q, c.at, c.mode)
		if before != c.before || unsure != c.unsure {
			t.Errorf("in %s, %d waits for %d (unsure %v)", c.queue, c.at, before, unsure)
		}
		if w, _ := contention(q, c.at, c.mode, int64(c.at)); w != c.wanted {
			t.Errorf("in %s, what %d holds is wanted: %v", c.queue, c.at, w)
		}
	}
}
