package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver receives spans over OTLP.
type receiver struct {
	t *testing.T

	mu       sync.Mutex
	spans    []*tracepb.Span   // guarded by mu
	resource map[string]string // guarded by mu
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	b, err := io.ReadAll(q.Body)
	var m collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &m)
	}
	if err != nil || q.URL.Path != "/v1/traces" {
		r.t.Errorf("%s: %v", q.URL, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range m.ResourceSpans {
		r.resource = texts(rs.Resource.Attributes)
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
}

func texts(kvs []*common.KeyValue) map[string]string {
	m := make(map[string]string)
	for _, kv := range kvs {
		m[kv.Key] = kv.Value.GetStringValue()
	}
	return m
}

// traced starts a daemon that exports to h.
func traced(t *testing.T, handler http.Handler) *host {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_SERVICE_NAME", "locks of ours")
	return newHost(t)
}

const here = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// in makes the host's commands part of a trace.
func (h *host) in(trace string) *host {
	in := *h
	in.env = append(in.env[:len(in.env):len(in.env)], "TRACEPARENT="+trace)
	return &in
}

func TestAcquiresAreSpansOfTheirCallers(t *testing.T) {
	r := &receiver{t: t}
	h := traced(t, r)
	p := h.in(here).lock(nil, "echo $TRACEPARENT; read x")
	if got := p.line(); got != here {
		t.Errorf("the command is told %q", got)
	}
	h.in(here).lock([]string{"-n"}, "true").ends(75)
	h.in(strings.TrimSuffix(here, "1")+"0").lock([]string{"-n"}, "true").ends(75) // not sampled
	h.in("nonsense").lock([]string{"-n"}, "true").ends(75)
	h.lock([]string{"-n"}, "true").ends(75)
	p.letGo()
	p.ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resource["service.name"] != "locks of ours" || r.resource["service.version"] == "" {
		t.Errorf("%v", r.resource)
	}
	if len(r.spans) != 2 {
		t.Fatalf("%v", r.spans)
	}
	for i, result := range []string{"granted", "busy"} {
		s := r.spans[i]
		a := texts(s.Attributes)
		if string(s.TraceId) != "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" ||
			string(s.ParentSpanId) != "\xb7\xad\x6b\x71\x69\x20\x33\x31" ||
			s.Name != "locksidecar acquire" ||
			s.Kind != tracepb.Span_SPAN_KIND_SERVER || s.StartTimeUnixNano > s.EndTimeUnixNano ||
			s.Status.GetCode() != tracepb.Status_STATUS_CODE_UNSET {
			t.Errorf("%v", s)
		}
		if a["locksidecar.result"] != result || a["locksidecar.key"] != "k" ||
			a["locksidecar.mode"] != "exclusive" ||
			a["locksidecar.namespace"] != "default" ||
			(a["locksidecar.fence"] != "") != (result == "granted") {
			t.Errorf("%v", a)
		}
	}
}

// The receiver of spans may hang. Locks still work, and the daemon ends.
func TestNobodyWaitsForTheReceiverOfSpans(t *testing.T) {
	stuck := make(chan struct{})
	h := traced(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer close(stuck)
	h.in(here).lock(nil, "true").ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if log := h.daemon.err.String(); !strings.Contains(log, "tracing_failed") {
		t.Error(log)
	}
}

// A missing receiver is logged, and no acquire is refused because of it.
func TestTracesThatCannotBeExportedAreRefusedInTheLog(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	h := traced(t, http.NotFoundHandler())
	h.in(here).lock(nil, "true").ends(0)
	if log := h.daemon.err.String(); !strings.Contains(log, "tracing_refused") ||
		!strings.Contains(log, "http/protobuf") {
		t.Error(log)
	}
}
