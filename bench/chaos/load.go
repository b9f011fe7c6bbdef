package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

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

// Main runs this process as a worker if it was started as one. Otherwise it returns.
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

// load is a worker: some owners that share one connection.
type load struct {
	Orders
	acquires atomic.Int64
	stop     chan struct{} // closed when no new turns may begin

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
	_ = l.out.Flush() // a worker that is killed after this has told everything
}

func (l *load) run(in io.Reader) {
	l.note(Event{E: evUp, T: now()})
	go func() {
		_, _ = io.Copy(io.Discard, in) // the end of the input tells the worker to stop
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

// client returns the connection. If the connection has ended, client makes a new one.
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
	c, err := client.Dial(ctx, l.Socket, client.Options{Name: "chaos go",
		Label: fmt.Sprint("worker ", l.Worker)})
	if err == nil {
		l.conn = c
	}
	return c, err
}

// owner is one caller of a worker.
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
