package protocol

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"testing"
)

// hostile has headers that claim more than there is.
var hostile = [][]byte{
	// These 5 bytes claim 4 billion entries.
	{0xdd, 0xff, 0xff, 0xff, 0xff},
	{0x94, 0x08, 0x09, 0xdd, 0xff, 0xff, 0xff, 0xff, 0x07},       // … as the keys of an acquire-many
	{0x94, 0x09, 0x09, 0xdd, 0xff, 0xff, 0xff, 0xff, 0x07},       // … as the pairs of a release-many
	{0x93, 0x0a, 0x09, 0xdf, 0xff, 0xff, 0xff, 0xff},             // … as an appended map
	{0x94, 0x02, 0x09, 0xdb, 0xff, 0xff, 0xff, 0xff},             // a key of 4 GiB
	{0x93, 0x0a, 0x09, 0xc6, 0xff, 0xff, 0xff, 0xff},             // bin of 4 GiB
	{0x93, 0x0a, 0x09, 0xc9, 0xff, 0xff, 0xff, 0xff, 0x01},       // ext of 4 GiB
	{0x93, 0x00, 0x0e, 0xdd, 0xff, 0xff, 0xff, 0xff},             // grants, codes or rows
	{0x9c, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0xdd, 0xff, 0xff, 0xff}, // namespaces
	bytes.Repeat([]byte{0x91}, 1<<16),                            // nesting without end
	bytes.Repeat([]byte{0xdc, 0xff, 0xff}, 1<<14),                // … of arrays that claim 65,535
}

func seedPayloads(f *testing.F, files ...string) {
	for _, file := range files {
		for _, v := range readVectors(f, file) {
			if len(v.frame) > HeaderLen {
				f.Add(v.payload())
			}
		}
	}
	for _, h := range hostile {
		f.Add(h)
	}
}

// FuzzDecodeRequest checks that no payload panics, allocates more than its bytes justify, or is
// refused inconsistently. An accepted payload means the same after it is encoded again.
func FuzzDecodeRequest(f *testing.F) {
	seedPayloads(f, "requests.txt", "requests-accept.txt", "bad-requests.txt")
	var q, again Request
	f.Fuzz(func(t *testing.T, payload []byte) {
		var fatal *FatalError
		var field *FieldError
		err := DecodeRequest(payload, &q)
		if cap(q.Keys) > 2*MaxMany || cap(q.Fences) > 2*MaxMany {
			t.Fatalf("room for %d keys and %d fences", cap(q.Keys), cap(q.Fences))
		}
		switch {
		case err == nil:
		case errors.As(err, &fatal):
			return
		case errors.As(err, &field):
			if q.ID == 0 || field.Code != Invalid && field.Code != Unsupported {
				t.Fatalf("answered with %v under id %d", field.Code, q.ID)
			}
			return
		default:
			t.Fatalf("error of type %T", err)
		}
		valid(t, &q)
		frame := AppendRequest(nil, &q)
		p, rest, ok, err := Cut(frame, math.MaxInt32)
		if !ok || err != nil || len(rest) != 0 {
			t.Fatalf("Cut of what was encoded: %v %v", ok, err)
		}
		if err := DecodeRequest(p, &again); err != nil {
			t.Fatalf("what was encoded is refused: %v", err)
		}
		same(t, again, q)
		if len(p) > len(payload)+64 { // defaults filled in
			t.Fatalf("%d bytes became %d", len(payload), len(p))
		}
	})
}

// valid checks what the rest of the daemon relies on.
func valid(t *testing.T, q *Request) {
	t.Helper()
	keys := append([][]byte{}, q.Keys...)
	switch q.Op {
	case OpAcquire, OpRelease, OpRenew, OpDowngrade, OpCancel, OpInspect:
		keys = append(keys, q.Key)
	}
	for _, k := range keys {
		if err := CheckKey(k); err != nil {
			t.Fatal(err)
		}
	}
	if q.ID == 0 || q.ID > math.MaxInt64 || q.Owner > math.MaxInt64 || q.Fence > math.MaxInt64 ||
		q.Mode > Permit ||
		(q.Mode == Permit) != (q.Permits > 0) && q.Op == OpAcquire || q.Permits > MaxPermits ||
		q.Wait < -1 || q.Wait > MaxWait || q.TTL > MaxTTL || len(q.Keys) > MaxMany {
		t.Fatalf("out of range: %+v", q)
	}
	if p, ok := ParseTraceparent(q.Trace); ok != (len(q.Trace) > 0) {
		t.Fatalf("traceparent %q", q.Trace)
	} else if again, _ := ParseTraceparent(p.String()); ok && again != p {
		t.Fatalf("traceparent %q became %q", q.Trace, p)
	}
	if q.Op == OpReleaseMany && len(q.Fences) != len(q.Keys) {
		t.Fatalf("%d fences for %d keys", len(q.Fences), len(q.Keys))
	}
}

// FuzzDecodeMessage checks that no payload from a daemon panics, whichever method reads it. A
// payload that is read means the same after it is encoded again.
func FuzzDecodeMessage(f *testing.F) {
	seedPayloads(f, "replies.txt", "replies-accept.txt", "pushes.txt", "pushes-accept.txt",
		"bad-replies.txt")
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := DecodeMessage(payload)
		if err != nil {
			return
		}
		if m.ID > math.MaxInt64 {
			t.Fatalf("id %d", m.ID)
		}
		for to := OpHello; to <= OpStored; to++ {
			ask := m
			x, err := read(&ask, to)
			if err != nil || to == OpCancel {
				continue
			}
			frame := write(m.ID, m.Code, to, x)
			again, err := DecodeMessage(frame[HeaderLen:])
			if err != nil {
				t.Fatalf("what was encoded is refused: %v", err)
			}
			y, err := read(&again, to)
			if err != nil {
				t.Fatalf("what was encoded is refused: %v", err)
			}
			if m.Code == OK {
				if a, b := write(m.ID, m.Code, to, x), write(m.ID, m.Code, to, y); !bytes.Equal(a, b) {
					t.Fatalf("%x became %x", a, b)
				}
			}
		}
		for e := EventLost; e <= EventReleaseFailed; e++ {
			ask := m
			ask.Event = e
			_, _ = push(&ask)
		}
	})
}

// FuzzCut checks that frames come out of a stream as they went in, wherever the stream is cut.
func FuzzCut(f *testing.F) {
	f.Add([]byte{}, 0, 16)
	f.Add([]byte{0, 0, 0, 0}, 2, 16)
	f.Add([]byte{0, 0, 0, 1, 0x90}, 4, 16)
	f.Add([]byte{0, 0, 0, 1, 0x90, 0, 0, 0, 2, 0x91}, 7, 16)
	f.Add([]byte{0, 0, 0, 5, 0xdd, 0xff, 0xff, 0xff, 0xff}, 6, 16)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, 4, math.MaxInt32)
	f.Fuzz(func(t *testing.T, stream []byte, at, maxFrame int) {
		if at < 0 || at > len(stream) || maxFrame < 1 {
			return
		}
		whole, wErr := cutAll(stream, nil, maxFrame)
		first, fErr := cutAll(stream[:at], nil, maxFrame)
		if fErr != nil {
			if wErr == nil {
				t.Fatalf("a part is refused (%v), the whole is not", fErr)
			}
			return
		}
		used := 0
		for _, p := range first {
			used += HeaderLen + len(p)
		}
		parts, pErr := cutAll(stream[used:], first, maxFrame)
		if (wErr == nil) != (pErr == nil) || !bytes.Equal(bytes.Join(whole, nil),
			bytes.Join(parts, nil)) || len(whole) != len(parts) {
			t.Fatalf("cut at %d: %d frames, %v; whole: %d frames, %v", at, len(parts), pErr,
				len(whole), wErr)
		}
	})
}

func cutAll(b []byte, got [][]byte, maxFrame int) ([][]byte, error) {
	for {
		p, rest, ok, err := Cut(b, maxFrame)
		if err != nil || !ok {
			if len(rest) != len(b) {
				panic("Cut took bytes without giving a frame")
			}
			return got, err
		}
		if len(p) == 0 || len(p) > maxFrame || len(p)+HeaderLen+len(rest) != len(b) {
			panic("Cut gave a payload of a wrong length")
		}
		got, b = append(got, p), rest
	}
}

// A header allocates no more than the bytes after it justify.
func TestHostileHeadersAllocateLittle(t *testing.T) {
	cost := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	for i, h := range hostile {
		if n := cost(func() {
			var q Request
			if DecodeRequest(h, &q) == nil {
				t.Errorf("%d: accepted", i)
			}
		}); n > 16<<10 {
			t.Errorf("request %d of %d bytes: %d bytes allocated", i, len(h), n)
		}
		if n := cost(func() {
			for to := OpHello; to <= OpStored; to++ {
				if m, err := DecodeMessage(h); err == nil {
					_, _ = read(&m, to)
				}
			}
		}); n > 16<<10 {
			t.Errorf("message %d of %d bytes: %d bytes allocated", i, len(h), n)
		}
	}
}
