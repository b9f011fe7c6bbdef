package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// now reads CLOCK_BOOTTIME.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Main runs this process as a worker if it was started as one, and else returns.
func Main() {
	if os.Getenv(roleEnv) != roleWorker {
		return
	}
	l := &load{out: bufio.NewWriter(os.Stdout), stop: make(chan struct{})}
	if err := l.read(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	l.run(os.Stdin)
	os.Exit(0)
}

// load is a worker: some owners on one connection.
type load struct {
	Orders
	acquires atomic.Int64
	stop     chan struct{} // closed when no more are to be begun

	outMu sync.Mutex
	out   *bufio.Writer // guarded by outMu

	mu   sync.Mutex
	conn *client.Client // guarded by mu; nil when there is none
}

func (l *load) note(e Event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	l.outMu.Lock()
	defer l.outMu.Unlock()
	_, _ = l.out.Write(append(b, '\n'))
	_ = l.out.Flush() // who is killed now has told all
}

func (l *load) run(in io.Reader) {
	l.note(Event{E: evUp, T: now()})
	go func() {
		_, _ = io.Copy(io.Discard, in) // its end is the word to stop
		close(l.stop)
	}()
	var wg sync.WaitGroup
	for o := range l.Owners {
		wg.Go(func() {
			w := &owner{load: l, no: o + 1, rnd: rand.New(rand.NewPCG(l.Seed, uint64(l.Worker*100+o)))}
			w.run()
		})
	}
	wg.Wait()
	l.mu.Lock()
	if l.conn != nil {
		l.conn.Close()
	}
	l.mu.Unlock()
	l.note(Event{E: evBye, T: now()})
}

// client is the connection, made anew when it has ended.
func (l *load) client() (*client.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && l.conn.Err() == nil {
		return l.conn, nil
	}
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, l.Socket, client.Options{Name: "chaos go", Label: fmt.Sprint("worker ", l.Worker)})
	if err == nil {
		l.conn = c
	}
	return c, err
}

// owner is one of a worker's callers.
type owner struct {
	*load
	no  int
	rnd *rand.Rand
	reg *bufio.ReadWriter
}

func (w *owner) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

func (w *owner) pause(most time.Duration) {
	time.Sleep(time.Duration(w.rnd.Int64N(int64(most))))
}

func (w *owner) run() {
	c, err := net.Dial("tcp", w.Register)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer c.Close()
	w.reg = bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	for !w.stopped() {
		if !w.turn() {
			w.pause(100 * time.Millisecond)
		}
		w.pause(w.Pause)
	}
}

// turn is one acquire with what comes after it; false when there was no answer, or none of use.
func (w *owner) turn() bool {
	a := client.AcquireArgs{Key: fmt.Sprint(w.Prefix, w.rnd.IntN(w.Keys)), Owner: uint64(w.no)}
	if w.rnd.IntN(5) == 0 {
		a.Mode = protocol.Shared
	}
	switch n := w.rnd.IntN(20); {
	case n < 4: // a try
	case n < 7:
		a.Wait = client.Forever
	default:
		a.Wait = time.Duration(200+w.rnd.IntN(2000)) * time.Millisecond
	}
	a.Fixed = w.rnd.IntN(10) == 0
	c, err := w.client()
	if err != nil {
		return false
	}
	h, n, err := w.acquire(c, a, 0)
	if err != nil {
		return errors.Is(err, client.ErrBusy) || errors.Is(err, client.ErrTimeout)
	}
	s := section{owner: w, h: h, n: n, key: a.Key}
	s.look()
	s.inside(c, a)
	s.leave()
	return true
}

// acquire notes it all; of is the acquire that it re-enters.
func (w *owner) acquire(c *client.Client, a client.AcquireArgs, of int64) (*client.Hold, int64, error) {
	n := w.acquires.Add(1)
	wait := a.Wait.Milliseconds()
	if a.Wait < 0 {
		wait = -1
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if wait >= 0 { // a daemon that says nothing is given up some time
		ctx, cancel = context.WithTimeout(ctx, a.Wait+5*time.Second)
	}
	defer cancel()
	w.note(Event{E: evAsk, T: now(), N: n, K: a.Key, O: w.no, M: int(a.Mode), Wait: wait, Of: of})
	h, err := c.Lock(ctx, a)
	e := Event{E: evGot, T: now(), N: n, R: word(err)}
	if err == nil {
		e.F, e.U = h.Fence(), e.T+int64(h.Remaining())
		e.D = int64(h.Grant().Deadline) * int64(time.Millisecond)
	}
	w.note(e)
	return h, n, err
}

// word is how a request ended, in one.
func word(err error) string {
	var e *client.Error
	var lost *client.LostError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, client.ErrClosed):
		return "connection"
	case errors.As(err, &lost):
		return lost.Reason.String()
	case errors.As(err, &e):
		return e.Code.String()
	case errors.Is(err, context.DeadlineExceeded):
		return "silence"
	}
	return "?" + err.Error()
}
