package zookeeper

import (
	"math"
	"slices"
	"testing"
)

func TestPermitNames(t *testing.T) {
	for _, sid := range []int64{1, -1, math.MinInt64, math.MaxInt64, 0x100000a1b2c30001} {
		for _, token := range []uint64{1, 1<<48 + 7, maxToken} {
			for _, limit := range []uint32{1, 10_000, math.MaxUint32} {
				for _, try := range []bool{false, true} {
					name := newPermitName(sid, token, limit, try) + "0000000042"
					n, ok := parsePermit(name)
					if want := (node{name: name, seq: 42, ours: true, sid: sid, try: try, token: token,
						limit: limit}); !ok || n != want {
						t.Fatalf("%s is %+v, not %+v", name, n, want)
					}
				}
			}
		}
	}
	for _, none := range []string{"", "p", "p-1-1-1", "p-1-1-1-", "p-1-1-1-1", "p-1-1-0-0000000001",
		"x-1-1-1-0000000001", "p--1-1-0000000001",
		"p-1-1-1-0000000001-", "p-1-100000000000000-1-0000000001",
		"_c_0a0a0a0a-0000-4000-8000-000000000000-lock-0000000001"} {
		if n, ok := parsePermit(none); ok {
			t.Errorf("%s is %+v", none, n)
		}
	}
	var order []int32
	for _, n := range readQueue([]string{"p-1-1-1--2147483648", "config", "p-1-2-1-2147483647",
		"t-1-3-1--2147483647"}, parsePermit) {
		order = append(order, n.seq)
	}
	if want := []int32{math.MaxInt32, math.MinInt32, math.MinInt32 + 1}; !slices.Equal(order, want) {
		t.Errorf("the order is %v", order)
	}
}

func FuzzParsePermit(f *testing.F) {
	f.Add(newPermitName(-1, maxToken, 3, true) + "0000000001")
	f.Add("p-1-1-1--2147483648")
	f.Fuzz(func(t *testing.T, name string) {
		if n, ok := parsePermit(name); ok && (n.limit == 0 || n.token > maxToken ||
			n.name != name || !n.ours) {
			t.Errorf("%q is %+v", name, n)
		}
	})
}
