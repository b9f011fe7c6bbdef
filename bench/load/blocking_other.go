//go:build !linux

package load

import "context"

// blocking exists only on Linux. On other systems Go's poller is used.
type blocking struct{}

func (w *wire) block() error { return nil }

func (*blocking) read(context.Context, []byte) (int, error) { panic("not on this system") }
func (*blocking) write([]byte) error                        { panic("not on this system") }
func (*blocking) close() error                              { panic("not on this system") }
