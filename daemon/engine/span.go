package engine

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Span is an acquire that said where in a trace it stands, from when its request was read to its
// answer, or to the end of its session.
type Span struct {
	Parent           protocol.Traceparent
	Began, Ended     int64  // by the engine's clock
	Key              string // as the log has it; of many the first, or the one that could not be had
	Keys             int    // how many were asked for
	Mode             cache.Mode
	Result           string // as the metrics call it
	Namespace, Store string
	Fence            uint64 // when one key was granted, and 0 when degraded
	Handoff          bool   // granted without asking the store: the lease was on this host
	Degraded         bool
}

// spanBegins notes that an acquire, of key and perhaps others, is under way, if it is to be traced.
func (s *Session) spanBegins(sp *route, q *protocol.Request, key []byte, now int64) {
	if len(q.Trace) == 0 || !s.engine.settings().Trace {
		return
	}
	parent, _ := protocol.ParseTraceparent(q.Trace)
	x := &Span{Parent: parent, Key: string(key), Keys: max(1, len(q.Keys)), Mode: cache.Mode(q.Mode),
		Namespace: NamespaceLabel(sp.Prefix), Store: sp.Name(), Began: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans == nil {
		s.spans = make(map[uint64]*Span)
	}
	s.spans[q.ID] = x
}

// spanEnd is how a traced acquire ended.
type spanEnd struct {
	outcome           cache.Outcome
	fence             uint64
	handoff, degraded bool
	key               string // another than the first; empty for that
}

// endOf is what an answer of the table says of it.
func endOf(m *cache.Message) spanEnd {
	end := spanEnd{cache.Outcome(m.Code), m.Fence, m.Handoff, m.Degraded, ""}
	if m.Count > 1 {
		end.outcome = cache.OutReentered
	}
	return end
}

// spanEnds hands on the span of the request with that id, if it is traced. Called with s.mu held.
func (s *Session) spanEnds(id uint64, end spanEnd) {
	x := s.spans[id]
	if x == nil {
		return
	}
	delete(s.spans, id)
	x.Ended = s.engine.clock()
	x.Result = ResultLabels[end.outcome]
	x.Fence, x.Handoff, x.Degraded = end.fence, end.handoff, end.degraded
	if end.key != "" {
		x.Key = end.key
	}
	s.engine.observer.SpanEnds(x)
}

func (s *Session) endSpan(id uint64, end spanEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spanEnds(id, end)
}

// endSpans ends what is traced of a session that has gone.
func (s *Session) endSpans() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.spans {
		s.spanEnds(id, spanEnd{outcome: cache.OutGone})
	}
}
