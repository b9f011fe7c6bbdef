package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// AbuseOrder tells an abusive client what to do.
type AbuseOrder struct {
	Addr string
	Kind string
}

// Abuses are the kinds of abuse with their descriptions. The last one does not use the daemon.
var Abuses = []struct{ Kind, About string }{
	{"waits", "50,000 acquires wait"}, {"holds", "as many locks are held as may be"},
	{"refused", "acquires are refused for a limit, again and again"},
	{"vanish", "connects, asks for 200 locks, and is gone"},
	{"bombs", "frames that claim four billion entries"},
	{"slow", "16 connections, a byte at a time"}, {"oneid", "64 requests at a time with one id"},
	{"unread", "asks and does not read"},
	{"busy", "a thread that computes"},
}

const (
	abuseConns = 8
	abuseAsks  = 50_000
	nobody     = 65534
)

// ServeAbuse is a process that carries out an order while the connection is open. If the process
// belongs to root, it becomes another user first.
func ServeAbuse(l net.Listener) error {
	return serveOrders(l, func(o *AbuseOrder) (orderReady, func()) {
		ctx, stop := context.WithCancel(context.Background())
		a := &abuser{addr: o.Addr}
		ready := orderReady{}
		if err := a.begin(ctx, o.Kind); err != nil {
			ready.Err = err.Error()
		}
		return ready, func() { stop(); a.end() }
	})
}

// OpenAbuse makes the abuser at socket begin. It continues until close is called.
func OpenAbuse(socket string, o AbuseOrder) (close func() error, err error) {
	_, close, err = order(socket, o)
	if err != nil {
		return nil, fmt.Errorf("abuse by %s: %w", o.Kind, err)
	}
	return close, nil
}

type abuser struct {
	addr  string
	conns []*wire
	wg    sync.WaitGroup
}

func (a *abuser) begin(ctx context.Context, kind string) error {
	if os.Geteuid() == 0 {
		if err := errors.Join(syscall.Setgroups([]int{nobody}), syscall.Setgid(nobody),
			syscall.Setuid(nobody)); err != nil {
			return err
		}
	}
	again := func(n int, do func() error) {
		for range n {
			a.wg.Go(func() {
				for ctx.Err() == nil && do() == nil {
				}
			})
		}
	}
	switch kind {
	case "waits":
		return a.crowd(true)
	case "holds":
		return a.crowd(false)
	case "refused":
		if err := a.crowd(true); err != nil {
			return err
		}
		for _, w := range a.conns[:2] {
			again(1, func() error { return window(w, protocol.OpAcquire, 64) })
		}
	case "vanish":
		again(2, a.vanish)
	case "bombs":
		again(2, a.bomb)
	case "slow":
		for range 2 * abuseConns {
			a.wg.Go(func() { a.slow(ctx) })
		}
	case "oneid":
		w, err := a.dial()
		if err != nil {
			return err
		}
		again(1, func() error { return window(w, protocol.OpInspect, 64) })
	case "unread":
		again(1, func() error { return a.unread(ctx) })
	case "busy":
		again(1, func() error { return nil })
	default:
		return errors.New("no such kind")
	}
	return nil
}

func (a *abuser) end() {
	for _, w := range a.conns {
		w.Close()
	}
	a.wg.Wait()
}

func (a *abuser) dial() (*wire, error) {
	w, err := dialDaemon(a.addr)
	if err == nil {
		a.conns = append(a.conns, w)
	}
	return w, err
}

// crowd makes more acquires than a limit allows, either to wait or to hold, and keeps them.
func (a *abuser) crowd(wait bool) error {
	for n := range abuseConns {
		w, err := a.dial()
		if err != nil {
			return err
		}
		var b []byte
		asked := abuseAsks / abuseConns
		if wait && n == 0 {
			if _, err := w.acquire(2, "abuse:held"); err != nil {
				return err
			}
		}
		for i := range asked {
			q := protocol.Request{Op: protocol.OpAcquire, ID: 7, Owner: uint64(10 + i),
				Key: []byte("abuse:held"), Wait: protocol.WaitAlways}
			if !wait {
				q.Key, q.Wait = fmt.Append(nil, "abuse:", n, ":", i), 0
			}
			b = protocol.AppendRequest(b, &q)
		}
		b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpPing, ID: 8})
		sent := make(chan error, 1)
		go func() { sent <- w.send(b) }()
		for id := uint64(0); id != 8; {
			p, err := w.next()
			if err != nil {
				return err
			}
			m, err := protocol.DecodeMessage(p)
			if err != nil {
				return err
			}
			id = m.ID
		}
		if err := <-sent; err != nil {
			return err
		}
	}
	return nil
}

// window sends n requests with one id, and reads as many answers.
func window(w *wire, op protocol.Op, n int) error {
	var b []byte
	for i := range n {
		b = protocol.AppendRequest(b, &protocol.Request{Op: op, ID: 7, Owner: uint64(1 + i),
			Key: []byte("abuse:held")})
	}
	if err := w.send(b); err != nil {
		return err
	}
	for n > 0 {
		p, err := w.next()
		if err != nil {
			return err
		}
		m, err := protocol.DecodeMessage(p)
		if err != nil {
			return err
		}
		if m.ID == 7 {
			n--
		}
	}
	return nil
}

func (a *abuser) vanish() error {
	w, err := dialDaemon(a.addr)
	if err != nil {
		return err
	}
	defer w.Close()
	var b []byte
	for i := range 200 {
		b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Owner: uint64(i),
			Key: fmt.Append(nil, "abuse:", i%100), Wait: protocol.WaitAlways})
	}
	return w.send(b)
}

func (a *abuser) bomb() error {
	w, err := dialDaemon(a.addr)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.send([]byte{0, 0, 0, 8, 0x93, 8, 7, 0xdd, 0xff, 0xff, 0xff, 0xff}); err != nil {
		return err
	}
	for {
		if _, err := w.next(); err != nil {
			return nil // the daemon has closed the connection
		}
	}
}

func (a *abuser) slow(ctx context.Context) {
	w, err := dialDaemon(a.addr)
	if err != nil {
		return
	}
	defer w.Close()
	b := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpAcquire, ID: 7,
		Key: []byte("abuse:slow"), Wait: protocol.WaitAlways})
	for i := 0; ctx.Err() == nil; i = (i + 1) % (len(b) - 1) {
		if w.send(b[i:i+1]) != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
		if i == len(b)-2 {
			return // the frame stays incomplete
		}
	}
}

func (a *abuser) unread(ctx context.Context) error {
	w, err := dialDaemon(a.addr)
	if err != nil {
		return err
	}
	defer w.Close()
	var b []byte
	for range 500 {
		b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpPing, ID: 7})
	}
	for ctx.Err() == nil && w.send(b) == nil {
	}
	return nil
}
