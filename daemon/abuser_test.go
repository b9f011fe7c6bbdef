package daemon_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// served has another client lock and unlock, again and again, until the test ends: whatever
// an abuser does, nothing of it fails.
func (h *host) served() (stop func()) {
	h.t.Helper()
	end, done := make(chan struct{}), make(chan struct{})
	c := h.dial(client.Options{Name: "served", OnLost: func(l client.Lost) {
		h.t.Errorf("%s is lost: %v", l.Key, l.Reason)
	}})
	go func() {
		defer close(done)
		for {
			hold, err := c.Lock(h.t.Context(), client.AcquireArgs{Key: "served", Wait: bound})
			if err == nil {
				err = hold.Release(h.t.Context())
			}
			if h.t.Context().Err() != nil {
				return // the test has failed
			}
			if err != nil {
				h.t.Error(err)
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	return func() { // once more at the least
		close(end)
		<-done
	}
}

// claims are headers that promise more than any frame has, and shells without end.
func claims() map[string][]byte {
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	within := func(front []byte, header ...byte) []byte {
		return frame(append(append(front, header...), huge...)...)
	}
	deep := func(n int, shell ...byte) []byte { return append(bytes.Repeat(shell, n), 0xc0) }
	ping := []byte{0x93, 10, 7}
	return map[string][]byte{
		"a header of all ones": huge,
		"a header of one byte too many": binary.BigEndian.AppendUint32(nil,
			protocol.DefaultMaxFrame+1),
		"an array of four billion":            within(nil, 0xdd),
		"a key of four billion bytes":         within([]byte{0x93, 2, 7}, 0xdb),
		"a key of four billion bytes, binary": within([]byte{0x93, 2, 7}, 0xc6),
		"four billion keys":                   within([]byte{0x93, 8, 7}, 0xdd),
		"a map of four billion":               within(ping, 0xdf),
		"an extension of four billion bytes":  within(ping, 0xc9),
		"arrays in arrays":                    frame(append(ping, deep(100, 0x91)...)...),
		"arrays in arrays, as many as a frame has": frame(append(ping,
			deep(protocol.DefaultMaxFrame-4, 0x91)...)...),
		"maps in maps":         frame(append(ping, deep(1000, 0x81, 0)...)...),
		"maps as keys of maps": frame(append(ping, deep(1000, 0x81)...)...),
	}
}

// What a frame claims is not believed: its session ends, and nothing is allocated for it.
func TestClaimsAreNotBelieved(t *testing.T) {
	h := start(t, nil, nil)
	stop := h.served()
	for name, b := range claims() {
		r := h.raw().hello()
		r.bytes(b)
		r.t = t
		r.fatal(protocol.BadFrame)
		if t.Failed() {
			t.Fatal(name)
		}
		_ = r.Close()
	}
	stop()
	before := allocated()
	const times = 50
	for _, b := range claims() {
		for range times {
			r := h.raw().hello()
			r.bytes(b)
			r.fatal(protocol.BadFrame)
			_ = r.Close()
		}
	}
	// Both ends are in this process; the largest of the frames passes through several buffers.
	if each := (allocated() - before) / times / uint64(len(claims())); each > 8*protocol.DefaultMaxFrame {
		t.Errorf("%d bytes are allocated for each", each)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// A frame may be full of what the daemon does not know: it is read over, and the request is
// answered.
func TestAFrameFullOfUnknownFieldsIsAnswered(t *testing.T) {
	h := start(t, nil, nil)
	r := h.raw().hello()
	const n = protocol.DefaultMaxFrame - 5
	fields := append([]byte{0xdd, 0, 0, 0, 0}, 10, 7)
	binary.BigEndian.PutUint32(fields[1:], n)
	for len(fields) < protocol.DefaultMaxFrame {
		fields = append(fields, 0xc0)
	}
	r.bytes(frame(fields...))
	if m := r.next(); m.ID != 7 || m.Code != protocol.OK {
		t.Fatal(m.ID, m.Code)
	}
}

// Clients that send a byte at a time, or half a frame and nothing more, cost what their connections
// cost, for as long as they last.
func TestSlowClientsHoldNobodyUp(t *testing.T) {
	const conns = 300
	// all is sent by then
	h := start(t, nil, func(c *daemon.Config) { c.Limits.MaxSilent = 10 * time.Second })
	hello := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1,
		MaxVersion: 1})
	lock := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 2,
		Key: []byte("slow"), Wait: protocol.WaitAlways})
	stop := h.served()
	before := descriptors(t)
	var never, half []*raw
	for range conns {
		never, half = append(never, h.raw()), append(half, h.raw().hello())
	}
	for n := range len(hello) - 1 { // each a byte further, and never the last
		for _, r := range never {
			_, _ = r.Write(hello[n : n+1])
		}
	}
	for n := range len(lock) - 1 {
		for _, r := range half {
			r.bytes(lock[n : n+1])
		}
	}
	for _, r := range never {
		r.fatal(protocol.BadFrame) // it has not said hello in time
		_ = r.Close()
	}
	half[0].bytes(lock[len(lock)-1:])
	if m := half[0].next(); m.ID != 2 || m.Code != protocol.OK {
		t.Error(m.ID, m.Code)
	}
	stop()
	for _, r := range half {
		_ = r.Close() // in the midst of a frame
	}
	eventually(t, "all is given back but the other's", func() bool {
		left := h.d.Engine().Residue()
		return descriptors(t) <= before && left.Sessions == 1 && left.Keys == 0
	})
}

// Ids are the client's: one that uses the same for everything gets as many answers as it asks for.
func TestOneIDForEverything(t *testing.T) {
	h := start(t, nil, nil)
	stop := h.served()
	other := h.dial(client.Options{})
	g := acquire(t, other, client.AcquireArgs{Key: "taken"})
	const n, id = 2000, 7
	r := h.raw().hello()
	var b []byte
	for i := range uint64(n) {
		for _, q := range []protocol.Request{
			{Op: protocol.OpAcquire, Key: []byte("taken"), Owner: i, Wait: protocol.WaitAlways},
			{Op: protocol.OpAcquire, Key: fmt.Append(nil, "own", i), Owner: i},
			{Op: protocol.OpAcquireMany, Keys: [][]byte{[]byte("taken"), fmt.Append(nil, "many", i)},
				Owner: i, Wait: protocol.WaitAlways},
			{Op: protocol.OpInspect, Key: []byte("taken")},
			{Op: protocol.OpCancel, Target: id, Key: []byte("taken")}, // some acquire, or the acquire-many
			{Op: protocol.OpCancel, Target: id, Key: []byte("taken")}, // and another one
		} {
			q.ID = id
			b = protocol.AppendRequest(b, &q)
		}
	}
	b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpPing, ID: 8})
	go func() { _, _ = r.Write(b) }()
	codes := make(map[protocol.Code]int)
	for _, last := range []uint64{8, 9} { // of what is read in one go acquire-manys are answered last
		m := r.next()
		for ; m.ID != last; m = r.next() {
			if m.ID == id {
				codes[m.Code]++
			}
		}
		r.send(&protocol.Request{Op: protocol.OpPing, ID: last + 1})
	}
	waiting := 0
	if s, err := other.Inspect(t.Context(), "taken"); err != nil {
		t.Fatal(err)
	} else {
		waiting = int(s.Waiters)
	}
	all := 0
	for _, c := range codes {
		all += c
	}
	if all+waiting != 6*n {
		t.Errorf("%v are answered, %d wait; %d were asked for", codes, waiting, 6*n)
	}
	release(t, other, "taken", 0, g.Fence)
	stop()
}

// Clients that come, hold, wait, ask for many, and are gone in the midst of it leave nothing
// behind.
func TestClientsThatComeAndVanishLeaveNothing(t *testing.T) {
	const rounds, seed = 400, 1
	h := start(t, nil, nil)
	rng := rand.New(rand.NewPCG(seed, seed))
	stop := h.served()
	other := h.dial(client.Options{})
	acquire(t, other, client.AcquireArgs{Key: "taken"})
	<-h.d.Started()
	_ = h.raw().hello().Close() // it is accepted behind the others, all of whose goroutines run then
	eventually(t, "only the others are left", func() bool {
		return h.d.Engine().Residue().Sessions == 2
	})
	before := runtime.NumGoroutine()
	for range rounds {
		r := h.raw().hello()
		var b []byte
		for id := uint64(2); id < 60; id++ {
			q := protocol.Request{ID: id, Owner: id}
			switch id % 6 {
			case 0:
				q.Op, q.Key = protocol.OpAcquire, fmt.Append(nil, "own", rng.IntN(50))
			case 1:
				q.Op, q.Key, q.Wait = protocol.OpAcquire, []byte("taken"), protocol.WaitAlways
			case 2:
				q.Op, q.Keys, q.Wait = protocol.OpAcquireMany,
					[][]byte{[]byte("a"), []byte("taken"), []byte("z")}, protocol.WaitAlways
			case 3:
				q.Op, q.Key, q.Mode, q.Permits, q.Wait = protocol.OpAcquire, []byte("permits"), protocol.Permit,
					3, protocol.WaitAlways
			case 4:
				q.Op, q.Key, q.Mode, q.Wait = protocol.OpAcquire, []byte("read"), protocol.Shared,
					protocol.WaitAlways
			case 5:
				q.Op, q.Target, q.Key = protocol.OpCancel, id-4, []byte("taken")
			}
			b = protocol.AppendRequest(b, &q)
		}
		r.bytes(b[:rng.IntN(len(b))])
		_ = r.Close()
	}
	eventually(t, "nothing is left but the others", func() bool {
		left := h.d.Engine().Residue()
		return left.Sessions == 2 && left.Keys <= 2 && left.Unaccounted == 0 &&
			runtime.NumGoroutine() <= before
	})
	stop()
}
