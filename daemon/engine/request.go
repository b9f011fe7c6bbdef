package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Receive handles every whole frame at the front of b and returns the remaining bytes. It flushes the sessions that
// have new output. It returns false if it has ended the session because of a fault in b. Calls must not be concurrent.
func (s *Session) Receive(b []byte) (rest []byte, ok bool) {
	rest, _, ok = s.ReceiveUpTo(b, math.MaxInt)
	return rest, ok
}

// ReceiveUpTo is like Receive, but stops when it has done at least most work. Each request counts as 1, and each
// further key of a request as 1. It also returns the work done.
func (s *Session) ReceiveUpTo(b []byte, most int) (rest []byte, work int, ok bool) {
	e, a := s.engine, &s.after
	now := e.clock()
	if len(b) > 0 {
		s.hear(now) // a part of a frame counts, too: the client may take long to send a large one
	}
	for ok = true; ok && work < most; ok = ok && !s.closing.Load() {
		payload, more, whole, err := protocol.Cut(b, s.frameLimit())
		if err != nil {
			s.Fatal(protocol.BadFrame, err.Error())
			ok = false
			break
		}
		if !whole {
			break
		}
		b = more
		ok = s.handle(payload, now, a)
		work += 1 + len(s.req.Keys)
	}
	e.finish(a, now, s)
	return b, work, ok
}

// frameLimit is the frame limit for both directions, in bytes of payload. A reload does not change what the
// client was told.
func (s *Session) frameLimit() int {
	if s.greeted {
		return s.frame
	}
	return s.engine.settings().MaxFrame
}

// handle answers one request, or passes it to the table of its key.
func (s *Session) handle(payload []byte, now int64, a *followUp) bool {
	q := &s.req
	if err := protocol.DecodeRequest(payload, q); err != nil {
		if f, ok := errors.AsType[*protocol.FatalError](err); ok {
			s.Fatal(f.Code, f.Msg)
			return false
		}
		f, _ := errors.AsType[*protocol.FieldError](err)
		if !s.greeted {
			s.Fatal(protocol.BadFrame, "the first request must be a good hello: "+f.Msg)
			return false
		}
		s.refuse(q.ID, f.Code, f.Msg, a)
		return true
	}
	if s.greeted == (q.Op == protocol.OpHello) {
		s.Fatal(protocol.BadFrame, "hello is the first request and comes once")
		return false
	}
	switch q.Op {
	case protocol.OpHello:
		return s.hello(q, now, a)
	case protocol.OpAcquire, protocol.OpAcquireMany:
		if q.Op == protocol.OpAcquire {
			s.acquire(q, now, a)
		} else {
			s.acquireMulti(q, now, a)
		}
	case protocol.OpReleaseMany:
		s.releaseMulti(q, now, a)
	case protocol.OpPing:
		id := q.ID
		s.write(a, func(b []byte) []byte { return protocol.AppendPong(b, id, uint64(now/int64(time.Millisecond))) })
	case protocol.OpList:
		s.list(q, now, a)
	case protocol.OpStored:
		s.stored(q, a)
	case protocol.OpCancel:
		if !s.cancelMulti(q, now, a) {
			s.onKey(q, now, a)
		}
	default:
		s.onKey(q, now, a)
	}
	return true
}

func (s *Session) refuse(id uint64, c protocol.Code, msg string, a *followUp) {
	s.write(a, func(b []byte) []byte { return protocol.AppendError(b, id, c, msg, -1) })
}

func (s *Session) request(id uint64) cache.Request { return cache.Request{Session: s.core, ID: id} }

func (s *Session) hello(q *protocol.Request, now int64, a *followUp) bool {
	if q.MinVersion > protocol.Version || q.MaxVersion < protocol.MinVersion || q.MinVersion > q.MaxVersion {
		s.Fatal(protocol.BadVersion, fmt.Sprintf("this daemon speaks versions %d to %d", protocol.MinVersion, protocol.Version))
		return false
	}
	s.greeted = true
	client := string(q.Name)
	if len(q.Label) > 0 {
		client += "/" + string(q.Label)
	}
	s.client.Store(&client)
	e := s.engine
	if e.observer != nil {
		e.observer.SessionBegins(s)
	}
	set, all := e.settings(), e.routes.Load()
	s.frame = set.MaxFrame
	main := all.routes[""]
	w := protocol.Welcome{
		Version: min(q.MaxVersion, protocol.Version), Session: s.core.ID, Now: uint64(now / int64(time.Millisecond)),
		MaxFrame: uint64(set.MaxFrame), MinTTL: ms(main.minTTL()), DefaultTTL: ms(main.TTL), MaxTTL: ms(main.MaxTTL),
		Daemon: set.Version,
	}
	for _, sp := range all.sorted() {
		if sp.Prefix == "" || sp.allows(&s.peer) {
			w.Namespaces = append(w.Namespaces, protocol.Namespace{Prefix: sp.Prefix, Store: sp.info.Name, Safety: sp.info.Safety,
				Heartbeat: ms(sp.Heartbeat)})
		}
	}
	if s.peer.Watched {
		w.Watch = protocol.WatchProcess
	}
	id := q.ID
	s.write(a, func(b []byte) []byte { return protocol.AppendWelcome(b, id, &w) })
	return true
}

func ms(d time.Duration) uint64 { return uint64(d.Milliseconds()) }

// terms returns an acquire's TTL and wait in nanoseconds, with the namespace's defaults.
func (sp *route) terms(q *protocol.Request) (ttl, wait int64) {
	ttl = int64(q.TTL) * int64(time.Millisecond)
	if ttl == 0 {
		ttl = int64(sp.TTL)
	}
	wait = q.Wait * int64(time.Millisecond)
	if q.Wait == protocol.WaitAlways {
		wait = cache.Forever
	}
	if most := int64(sp.MaxWait); most > 0 {
		wait = min(wait, most)
	}
	return ttl, wait
}

// turnAway refuses an acquire before any table sees it.
func (s *Session) turnAway(sp *route, q *protocol.Request, key []byte, code cache.Code, err error, now int64, a *followUp) {
	s.spanBegins(sp, q, key, now)
	s.endSpan(q.ID, spanEnd{outcome: cache.Outcome(code)})
	s.refuse(q.ID, protocol.Code(code), err.Error(), a)
	sp.class.refused.add(protocol.Code(code))
	s.noteRefused(cache.Notice{Mode: cache.Mode(q.Mode), Code: code, Key: string(key), Owner: q.Owner}, a)
}

// noteRefused tells the observer of a refused acquire that no table has reported.
func (s *Session) noteRefused(n cache.Notice, a *followUp) {
	if s.engine.audit.Load() {
		n.Kind, n.Session = cache.NoticeRefused, s.core
		a.notices = append(a.notices, n)
	}
}

func (s *Session) acquire(q *protocol.Request, now int64, a *followUp) {
	e := s.engine
	sh, i, sp := e.lockKey(q.Key)
	ttl, wait := sp.terms(q)
	if code, err := sp.admits(&s.peer, cache.Mode(q.Mode), ttl); code != cache.CodeOK {
		sh.mu.Unlock()
		s.turnAway(sp, q, q.Key, code, err, now, a)
		return
	}
	s.spanBegins(sp, q, q.Key, now)
	sh.table.Acquire(&cache.Acquire{Re: s.request(q.ID), NS: sp.table, Key: q.Key, Owner: q.Owner, Mode: cache.Mode(q.Mode),
		Limit: uint32(q.Permits), Wait: wait, TTL: ttl, Fixed: q.Flags&protocol.FlagFixed != 0, Draining: e.draining.Load()}, now, &sh.out)
	e.unlock(sh, i, now, a)
}

// onKey handles the requests that are a single event for the table of one key.
func (s *Session) onKey(q *protocol.Request, now int64, a *followUp) {
	e, re := s.engine, s.request(q.ID)
	if q.Op == protocol.OpRelease && q.Flags&protocol.FlagQuiet != 0 {
		re.InternalReply = quiet{}
	}
	ttl := time.Duration(q.TTL) * time.Millisecond
	sh, i, sp := e.lockKey(q.Key)
	if code, msg := sp.checkOnKey(s, q, ttl); code != protocol.OK {
		sh.mu.Unlock()
		s.refuse(q.ID, code, msg, a)
		return
	}
	if q.Op == protocol.OpInspect && q.Flags&protocol.FlagHolders != 0 {
		sh.mu.Unlock()
		s.inspectHolders(q, sp, now, a)
		return
	}
	switch q.Op {
	case protocol.OpRelease:
		sh.table.Release(&cache.Release{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence,
			All: q.Flags&protocol.FlagAll != 0, Async: q.Flags&protocol.FlagAsync != 0}, now, &sh.out)
	case protocol.OpRenew:
		sh.table.Renew(&cache.Renew{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence, TTL: int64(ttl)}, now, &sh.out)
	case protocol.OpDowngrade:
		sh.table.Downgrade(&cache.Downgrade{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence}, now, &sh.out)
	case protocol.OpCancel:
		sh.table.Cancel(re, q.Key, q.Target, now, &sh.out)
	case protocol.OpInspect:
		sh.table.Inspect(re, sp.table, q.Key, cache.Mode(q.Mode), now, &sh.out)
	}
	e.unlock(sh, i, now, a)
}

// checkOnKey checks a request of onKey before the table sees it. It returns OK, or the code and the reason of
// the refusal.
func (sp *route) checkOnKey(s *Session, q *protocol.Request, ttl time.Duration) (protocol.Code, string) {
	switch {
	case q.Op == protocol.OpRenew && ttl > 0 && (ttl < sp.minTTL() || ttl > sp.MaxTTL):
		return protocol.Invalid, fmt.Sprintf("ttl of %v is not between %v and %v", ttl, sp.minTTL(), sp.MaxTTL)
	case q.Op != protocol.OpInspect:
	case !sp.allows(&s.peer):
		return protocol.Denied, errDenied.Error()
	case q.Mode == protocol.Permit && !sp.info.Permits:
		return protocol.Unsupported, errNoSemaphores.Error()
	}
	return protocol.OK, ""
}

// quiet is the internal reply of a release that is answered only if it fails.
type quiet struct{}
