package driverkit

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

// Options are the part of a driver's Config that does not come from the store's URL. Each is
// optional, except for the Clock of a ZooKeeper. A driver ignores the options that its kind of
// store does not need.
type Options struct {
	Log *zap.Logger
	// Clock is the boot clock. Without it a Store uses the process's monotonic clock, which stops
	// while the machine is suspended. Only tests may leave it out.
	Clock upstream.Clock `json:"-"` // a function has no JSON
	// Instance is the instance id of an earlier Store, whose leases the new one continues. The
	// numbers of its tokens must continue to rise.
	Instance string
	// Fences keeps the fence bases rising when a server that is behind takes over. Several Stores
	// of the same servers may share it.
	Fences *upstream.FenceClock
	// Highest is the highest revision or transaction id that has been seen at the servers. The
	// Store raises it, and refuses a server that is at a lower one. Several Stores of the same
	// servers may share it.
	Highest *atomic.Int64
}

// Complete gives each option that is missing its default. It returns an error if Instance is not an
// instance id.
func (o *Options) Complete() (err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Fences == nil {
		o.Fences = upstream.NewFenceClock(o.Clock)
	}
	if o.Clock == nil {
		start := time.Now()
		o.Clock = func() int64 { return int64(time.Since(start)) + 1 }
	}
	if o.Highest == nil {
		o.Highest = new(atomic.Int64)
	}
	o.Instance, err = upstream.InstanceOr(o.Instance)
	return err
}

// Mover returns the Mover of a Store that needs nothing but its instance id and its fence clock.
// The other process continues with the leases if it also knows the numbers of their tokens.
func (o *Options) Mover() upstream.Mover { return mover{o.Instance, o.Fences} }

type mover struct {
	instance string
	fences   *upstream.FenceClock
}

// Identity returns the instance id.
func (m mover) Identity() string { return m.instance }

// Leave returns the state of the fence clock.
func (m mover) Leave() ([]byte, error) { return m.fences.Leave(), nil }

// Stay has nothing to do.
func (m mover) Stay() {}

// Arrive adopts the state of the fence clock.
func (m mover) Arrive(b []byte) (begin func(), err error) { return func() {}, m.fences.Arrive(b) }
