package redis

import (
	"context"
	"errors"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	// idleLimit is how long a subscription may be silent before it is pinged. If the ping is not
	// answered within the same time again, the subscription is made anew.
	idleLimit = 10 * time.Second
	retryMin  = 100 * time.Millisecond
	retryMax  = 2 * time.Second
)

// retryUntilDone calls try until ctx ends, with pauses that grow until try calls up. failed gets
// the first error after each up.
func retryUntilDone(ctx context.Context, try func(up func()) error, failed func(error)) {
	pause, down := driverkit.Backoff{Min: retryMin, Max: retryMax}, false
	for ctx.Err() == nil {
		err := try(func() { down = false; pause.Reset() })
		if ctx.Err() != nil {
			return
		}
		if !down {
			failed(err)
			down = true
		}
		pause.Wait(ctx)
	}
}

// receive passes the messages of a subscription to on until it fails, on returns an error, or ctx
// ends.
func receive(ctx context.Context, ps *goredis.PubSub, on func(any) error) error {
	// A read does not end with its context, only with its connection.
	stop := context.AfterFunc(ctx, func() { _ = ps.Close() })
	defer stop()
	asked := false
	for {
		m, err := ps.ReceiveTimeout(ctx, idleLimit)
		switch {
		case err == nil:
			asked = false
		case isTimeout(err) && !asked:
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		default:
			return err
		}
		if err := on(m); err != nil {
			return err
		}
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
