//go:build !nootel

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/audit"
)

// tracing exports acquires as spans over OTLP, if OpenTelemetry's own variables name a collector.
// Only acquires with a trace context get a span: the daemon begins no trace.
type tracing struct {
	log        *zap.Logger
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	maxWaiting int64        // maximum number of spans that wait to be exported
	waiting    atomic.Int64 // number of spans that wait
	dropped    int          // number of spans since told; used by the goroutine that calls export
	told       time.Time
}

const (
	maxSpans   = 1 << 14 // unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise
	tracingEnd = 2 * time.Second
	tellEvery  = 10 * time.Second
)

// newTracing returns nil if nothing is to be exported. It logs faults of the variables instead of
// returning an error, because no lock may be refused for them.
func (m *Main) newTracing(ctx context.Context, log *zap.Logger) *tracing {
	if wanted, why := m.tracingWanted(); !wanted {
		if why != "" {
			log.Warn("acquires are not traced", zap.String("event", "tracing_refused"),
				zap.String("reason", why))
		}
		return nil
	}
	t := &tracing{log: log, maxWaiting: maxSpans}
	if v, ok := m.Env("OTEL_BSP_MAX_QUEUE_SIZE"); ok {
		if n, err := strconv.ParseInt(v, 10, 32); err == nil && n > 0 {
			t.maxWaiting = n
		}
	}
	failed := func(text string) {
		log.Warn("tracing", zap.String("event", "tracing_failed"), zap.String("reason", text))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { failed(err.Error()) }))
	otel.SetLogger(funcr.New(func(_, args string) { failed(args) }, funcr.Options{Verbosity: 1,
		RenderBuiltinsHook: hideParsed, RenderArgsHook: hideValues}))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		failed(err.Error())
		return nil
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name",
		"locksidecar"),
		attribute.String("service.version", thisBuild().Version)), resource.WithHost(),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		failed(err.Error())
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(about),
		sdktrace.WithBatcher(&exported{exporter, &t.waiting},
			sdktrace.WithMaxQueueSize(int(t.maxWaiting))))
	t.tracer = t.provider.Tracer("github.com/locksidecar/locksidecar",
		trace.WithInstrumentationVersion(thisBuild().Version))
	return t
}

// hidden replaces text that may contain a secret.
const hidden = "(not shown)"

// hideValues hides the values of variables that OpenTelemetry cannot parse, because headers and
// URLs contain passwords.
func hideValues(kv []any) []any {
	for i := 0; i+1 < len(kv); i += 2 {
		switch kv[i] {
		case "input", "key", "value", "url", "endpoint":
			kv[i+1] = hidden
		}
	}
	return kv
}

// hideParsed hides an error about a URL, because it repeats the URL.
func hideParsed(kv []any) []any {
	parsed := false
	for i := 0; i+1 < len(kv); i += 2 {
		if text, _ := kv[i+1].(string); kv[i] == "msg" {
			parsed = strings.Contains(text, "url")
		} else if kv[i] == "error" && parsed {
			kv[i+1] = hidden
		}
	}
	return kv
}

// tracingWanted reports whether spans are to be exported. The reason is not empty if the
// variables ask for an export that is not available.
func (m *Main) tracingWanted() (bool, string) {
	first := func(names ...string) string {
		for _, name := range names {
			if v, _ := m.Env(name); v != "" {
				return v
			}
		}
		return ""
	}
	off := first("OTEL_SDK_DISABLED") == "true"
	if off || first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return false, ""
	}
	switch v := first("OTEL_TRACES_EXPORTER"); v {
	case "", "otlp":
	case "none":
		return false, ""
	default:
		return false, fmt.Sprintf("OTEL_TRACES_EXPORTER is %s: there is otlp, and none", v)
	}
	if v := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); v != "" &&
		v != "http/protobuf" {
		return false, fmt.Sprintf("OTEL_EXPORTER_OTLP_PROTOCOL is %s: there is http/protobuf", v)
	}
	return true, ""
}

// exported counts the spans that have been exported, or could not be.
type exported struct {
	sdktrace.SpanExporter
	waiting *atomic.Int64
}

func (e *exported) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer e.waiting.Add(-int64(len(spans)))
	return e.SpanExporter.ExportSpans(ctx, spans)
}

// take returns the value of daemon.Config.Spans.
func (t *tracing) take() func(audit.Span) {
	if t == nil {
		return nil
	}
	return t.export
}

// export passes a span to the exporter, or drops it if too many wait there.
func (t *tracing) export(s audit.Span) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: s.Parent.Trace,
		SpanID:     s.Parent.Parent,
		TraceFlags: trace.TraceFlags(s.Parent.Flags), Remote: true})
	_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent),
		"locksidecar acquire",
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(s.Began),
		trace.WithAttributes(attributes(s)...))
	if !span.SpanContext().IsSampled() {
		return
	}
	if t.waiting.Load() >= t.maxWaiting { // only this goroutine adds to it
		t.drop()
		return
	}
	switch s.Result {
	case "unavailable", "limit", "draining":
		span.SetStatus(codes.Error, s.Result)
	}
	t.waiting.Add(1)
	span.End(trace.WithTimestamp(s.Ended))
}

func attributes(s audit.Span) []attribute.KeyValue {
	all := append(make([]attribute.KeyValue, 0, 8), attribute.String("locksidecar.key", s.Key),
		attribute.Stringer("locksidecar.mode", s.Mode),
		attribute.String("locksidecar.result", s.Result),
		attribute.String("locksidecar.namespace", s.Namespace),
		attribute.String("locksidecar.store", s.Store))
	if s.Keys > 1 {
		all = append(all, attribute.Int("locksidecar.keys", s.Keys))
	}
	if s.Fence > 0 {
		all = append(all, attribute.String("locksidecar.fence", strconv.FormatUint(s.Fence, 10)),
			attribute.Bool("locksidecar.handed_off", s.Handoff))
	}
	if s.Degraded {
		all = append(all, attribute.Bool("locksidecar.degraded", true))
	}
	return all
}

// drop counts a dropped span, and logs the count at most once in tellEvery.
func (t *tracing) drop() {
	if t.dropped++; time.Since(t.told) > tellEvery {
		t.tell()
	}
}

func (t *tracing) tell() {
	t.log.Warn("spans dropped: the exporter cannot keep up",
		zap.String("event", "spans_dropped"), zap.Int("missing", t.dropped))
	t.dropped, t.told = 0, time.Now()
}

// close exports the spans that wait, for at most tracingEnd. export is not called any more.
func (t *tracing) close() {
	if t == nil {
		return
	}
	if t.dropped > 0 {
		t.tell()
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracingEnd)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("spans may be missing", zap.String("event", "tracing_failed"), zap.Error(err))
	}
}
