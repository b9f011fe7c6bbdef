package engine

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Span is an acquire with a trace context. It lasts from when its request was read to its answer,
// or to the end of its session.
type Span struct {
	Parent           protocol.Traceparent
	Began, Ended     int64  // times of the engine's clock
	Key              string // as in the log; of several keys, the one that decided, else the first
	Keys             int    // number of keys requested
	Mode             protocol.Mode
	Result           string // as in the metrics
	Namespace, Store string
	Fence            uint64 // if one key was granted; 0 if degraded
	Handoff          bool   // granted without a request to the store: the lease was on this host
	Degraded         bool
}

// beginSpan begins the span of an acquire, of key and perhaps others, if it is traced.
func (s *Session) beginSpan(rt *route, q *protocol.Request, key []byte, now int64) {
	if len(q.Trace) == 0 || !s.engine.settings().Trace {
		return
	}
	parent, _ := protocol.ParseTraceparent(q.Trace)
	x := &Span{Parent: parent, Key: string(key), Keys: max(1, len(q.Keys)), Mode: q.Mode,
		Namespace: NamespaceLabel(rt.Prefix), Store: rt.Name(), Began: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans == nil {
		s.spans = make(map[uint64]*Span)
	}
	s.spans[q.ID] = x
}

// spanEnd says how a traced acquire ended.
type spanEnd struct {
	outcome           cache.Outcome
	fence             uint64
	handoff, degraded bool
	key               string // empty for the first key
}

// endOf returns the spanEnd for an answer of the table.
func endOf(m *cache.Message) spanEnd {
	end := spanEnd{cache.Outcome(m.Code), m.Fence, m.Handoff, m.Degraded, ""}
	if p, ok := m.Re.InternalReply.(part); ok {
		end.key = string(p.keys[p.n])
	}
	if m.Count > 1 {
		end.outcome = cache.OutReentered
	}
	return end
}

// endSpanLocked ends the span of the request with that id, if it is traced, and passes it to the
// observer. It is called with s.mu held.
func (s *Session) endSpanLocked(id uint64, end spanEnd) {
	x := s.spans[id]
	if x == nil {
		return
	}
	delete(s.spans, id)
	x.Ended = s.engine.clock()
	x.Result = ResultLabels[end.outcome]
	x.Fence, x.Handoff, x.Degraded = end.fence, end.handoff, end.degraded
	if end.key != "" {
		rt := routeFor(s.engine.routes.Load(), end.key)
		x.Key, x.Namespace, x.Store = end.key, NamespaceLabel(rt.Prefix), rt.Name()
	}
	s.engine.observer.SpanEnds(x)
}

func (s *Session) endSpan(id uint64, end spanEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endSpanLocked(id, end)
}

// endSpans ends the spans of a session that has ended.
func (s *Session) endSpans() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.spans {
		s.endSpanLocked(id, spanEnd{outcome: cache.OutGone})
	}
}
