package audit

import (
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// Span is a traced acquire with its times on the wall clock.
type Span struct {
	engine.Span
	Began, Ended time.Time
}

// maxSpans bounds the spans that wait for the exporter. They take about 20 MB.
const maxSpans = 1 << 16

// SpanEnds queues a span.
func (l *Log) SpanEnds(x *engine.Span) {
	l.spans.Put(1, func(q []engine.Span) []engine.Span { return append(q, *x) })
}

// passSpans passes spans to Config.Spans.
func (l *Log) passSpans(xs []engine.Span) {
	for i := range xs {
		x := xs[i]
		x.Key = l.Key(x.Key)
		took := time.Duration(x.Ended - x.Began)
		ended := time.Now().Add(-time.Duration(l.cfg.Clock() - x.Ended))
		l.cfg.Spans(Span{Span: x, Began: ended.Add(-took), Ended: ended})
	}
}

func (l *Log) spansDropped(n uint64) {
	l.cfg.Log.Error("spans dropped: the exporter cannot keep up",
		zap.String("event", "spans_dropped"), zap.Uint64("missing", n))
}
