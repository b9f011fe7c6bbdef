package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// TracedSpan is a span with its times on the wall clock.
type TracedSpan struct {
	engine.Span
	Began, Ended time.Time
}

// spansMost bounds the spans that wait for the exporter. They take about 20 MB.
const spansMost = 1 << 16

// trace passes the spans of acquires to take, if it is not nil.
func (d *Daemon) trace(take func(TracedSpan)) {
	if take == nil {
		return
	}
	d.spans = audit.NewBacklog(spansMost, func(xs []engine.Span) {
		for i := range xs {
			xs[i].Key = d.audit.Key(xs[i].Key)
			x := &xs[i]
			took := time.Duration(x.Ended - x.Began)
			ended := time.Now().Add(-time.Duration(d.clock() - x.Ended))
			take(TracedSpan{Span: *x, Began: ended.Add(-took), Ended: ended})
		}
	}, func(n uint64) {
		d.log.Error("spans dropped: the exporter cannot keep up", zap.String("event", "spans_dropped"), zap.Uint64("missing", n))
	})
}

// SpanEnds queues a span.
func (v events) SpanEnds(x *engine.Span) {
	v.d.spans.Put(1, func(q []engine.Span) []engine.Span { return append(q, *x) })
}

// closeLogs writes the queued lines and spans.
func (d *Daemon) closeLogs() {
	d.audit.Close()
	if d.spans != nil {
		d.spans.Close()
	}
}

// logsEnd is how long finishLogs waits.
const logsEnd = time.Second

// finishLogs writes what waits, but does not wait long for a slow reader: until this process has ended, clients do not
// notice that the process that has taken over closes their connections.
func (d *Daemon) finishLogs() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.closeLogs()
	}()
	select {
	case <-done:
	case <-time.After(logsEnd):
	}
}
