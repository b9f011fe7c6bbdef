package load

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// The kinds of frames.
const (
	Echo    = "echo"    // frames of Request and Reply bytes, against the echo server
	Reentry = "reentry" // acquires of a key that the connection already holds
	Busy    = "busy"    // tries of one key that another session holds
)

// FramesArgs says which frames are sent, and how.
type FramesArgs struct {
	Addr    string
	Kind    string
	Conns   int
	Depth   int // in flight on each connection
	Request int // Echo: payload bytes
	Reply   int // Echo: payload bytes
	// Thread gives each connection a thread that sleeps in the kernel, instead of a goroutine. It is
	// for few connections, for comparison with chain.
	Thread bool
}

// ReentryKey returns the key that connection i holds. It is as long as BusyKey.
func ReentryKey(i int) string { return fmt.Sprintf("bench:held:%06d", i) }

// BusyKey is the key of all busy tries. One session holds it.
const BusyKey = "bench:busy:000001"

// request returns the frame of a kind for connection i. id is below 128, so that all frames have
// the same size.
func (a *FramesArgs) request(i int, id uint64) []byte {
	switch a.Kind {
	case Reentry:
		return protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: id,
			Key: []byte(ReentryKey(i)), Owner: 1})
	case Busy:
		return protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: id,
			Key: []byte(BusyKey), Owner: 1})
	}
	b := make([]byte, protocol.HeaderLen+a.Request)
	binary.BigEndian.PutUint32(b, uint32(a.Request))
	binary.BigEndian.PutUint16(b[protocol.HeaderLen:], uint16(a.Reply))
	return b
}

// RequestSize returns the payload bytes of the frames of a kind.
func RequestSize(kind string) int {
	return len((&FramesArgs{Kind: kind}).request(0, 1)) - protocol.HeaderLen
}

type frames struct {
	args   FramesArgs
	conns  []*wire
	holder *wire
}

// NewFrames returns the load that sends frames.
func NewFrames() harness.Load { return &frames{} }

func (f *frames) Open(spec *harness.Spec) (int, error) {
	if err := json.Unmarshal(spec.Args, &f.args); err != nil {
		return 0, err
	}
	connect := dialDaemon
	if f.args.Kind == Echo {
		connect = dial
	}
	for i := range f.args.Conns {
		w, err := connect(f.args.Addr)
		if err != nil {
			return 0, err
		}
		f.conns = append(f.conns, w)
		if f.args.Kind == Reentry {
			if _, err := w.acquire(2, ReentryKey(i)); err != nil {
				return 0, err
			}
		}
	}
	if f.args.Kind == Busy {
		var err error
		if f.holder, err = dialDaemon(f.args.Addr); err != nil {
			return 0, err
		}
		if _, err := f.holder.acquire(2, BusyKey); err != nil {
			return 0, err
		}
	}
	return len(f.conns), nil
}

func (f *frames) Run(ctx context.Context, i int, rec *harness.Rec) error {
	w := f.conns[i]
	stop, err := w.start(ctx, f.args.Thread)
	if err != nil {
		return err
	}
	defer stop()
	want := protocol.OK
	if f.args.Kind == Busy {
		want = protocol.Busy
	}
	depth := f.args.Depth
	var requests []byte // all requests twice, so that the ones to send are always contiguous
	for id := range 2 * depth {
		requests = append(requests, f.args.request(i, uint64(id%depth)+1)...)
	}
	return pump(w, requests, depth, want, rec)
}

// pump keeps depth frames in flight. After each read it sends as many requests as it has read
// replies, in one write. The daemon decides all of these requests at once, so it answers them in
// order.
func pump(w *wire, requests []byte, depth int, want protocol.Code, rec *harness.Rec) error {
	size := len(requests) / (2 * depth)
	sent := make([]time.Time, depth)
	now := time.Now()
	for i := range sent {
		sent[i] = now
	}
	oldest, n := 0, depth // the request that is answered next; how many requests to send
	for {
		first := (oldest + depth - n) % depth
		if err := w.send(requests[first*size : (first+n)*size]); err != nil {
			return err
		}
		if err := w.fill(); err != nil {
			return err
		}
		now = time.Now()
		received := 0
		for n = 0; ; {
			p, ok := w.took()
			if !ok {
				break
			}
			if len(p) < 3 || p[1] >= byte(protocol.EventLost) {
				if err := pushed(p); err != nil {
					return err
				}
				continue
			}
			if p[1] != byte(want) {
				return fmt.Errorf("answered %v", protocol.Code(p[1]))
			}
			rec.Op(now.Sub(sent[oldest]))
			sent[oldest] = now
			oldest = (oldest + 1) % depth
			received += len(p)
			n++
		}
		rec.Received(received)
		if rec.Stopped() {
			return nil
		}
	}
}

// pushed accepts a keepalive; any other push is an error.
func pushed(p []byte) error {
	m, err := protocol.DecodeMessage(p)
	if err == nil && m.Event != protocol.EventKeepalive {
		err = fmt.Errorf("pushed event %d", m.Event)
	}
	return err
}

func (f *frames) Close() {
	for _, w := range f.conns {
		w.Close()
	}
	if f.holder != nil {
		f.holder.Close()
	}
}
