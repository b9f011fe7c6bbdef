//go:build !linux

package load

import "context"

// blocking is there on Linux only; elsewhere Go's poller does.
type blocking struct{}

func (w *wire) block() error { return nil }

func (*blocking) read(context.Context, []byte) (int, error) { panic("not on this system") }
func (*blocking) write([]byte) error                        { panic("not on this system") }
func (*blocking) close() error                              { panic("not on this system") }
