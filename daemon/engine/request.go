package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file handles the requests of clients. It cuts frames from the bytes of a session, decodes
// them, makes the checks that need no lock table, and passes each request to the table of its key.
// Requests for several keys continue in several.go, multi.go and any.go, and lists in list.go,
// stored.go and holder.go.
//
// In all functions, now is the time at which the input was read, and a collects the work that has
// to wait until no shard is locked (followUp in shard.go).

// Receive handles every whole frame at the front of b and returns the remaining bytes. It flushes
// the sessions that have new output. It returns false if it has ended the session because of a
// fault in b. Calls must not be concurrent.
func (s *Session) Receive(b []byte) (rest []byte, ok bool) {
	rest, _, ok = s.ReceiveUpTo(b, math.MaxInt)
	return rest, ok
}

// ReceiveUpTo is like Receive, but stops when it has done at least limit work. It also returns the
// work done. Each request counts as 1, and so does each key in a list of keys.
func (s *Session) ReceiveUpTo(b []byte, limit int) (rest []byte, work int, ok bool) {
	e, a := s.engine, &s.after
	now := e.clock()
	if len(b) > 0 {
		// The client counts as alive. A part of a frame suffices, because a large frame takes long.
		s.hear(now)
	}
	for ok = true; ok && work < limit; ok = ok && !s.closing.Load() {
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
		if s.req.Op == protocol.OpList && s.halfFull() {
			e.finish(a, now, s) // pages are large: many of one read do not wait together
		}
	}
	e.finish(a, now, s)
	return b, work, ok
}

// frameLimit returns the frame limit for both directions, in bytes of payload. A reload does not
// change the limit of a session after its welcome.
func (s *Session) frameLimit() int {
	if s.greeted {
		return s.maxFrame
	}
	return s.engine.settings().MaxFrame
}

// handle answers one request, or passes it to the table of its key. It returns false if it has
// ended the session.
func (s *Session) handle(payload []byte, now int64, a *followUp) bool {
	q := &s.req
	if err := protocol.DecodeRequest(payload, q); err != nil {
		return s.malformed(err, a)
	}
	if isHello := q.Op == protocol.OpHello; isHello == s.greeted {
		s.Fatal(protocol.BadFrame, "hello is the first request and comes once")
		return false
	}
	switch q.Op {
	case protocol.OpHello:
		return s.hello(q, now, a)
	case protocol.OpAcquire:
		s.acquire(q, now, a)
	case protocol.OpAcquireMany:
		s.acquireMulti(q, now, a)
	case protocol.OpAcquireAny:
		s.acquireAny(q, now, a)
	case protocol.OpReleaseMany:
		s.releaseMulti(q, now, a)
	case protocol.OpPing:
		s.pong(q.ID, now, a)
	case protocol.OpList:
		s.list(q, now, a)
	case protocol.OpStored:
		s.stored(q, a)
	case protocol.OpForceUnlock:
		s.forceUnlock(q, now, a)
	case protocol.OpCancel:
		if !s.cancelSeveral(q, now, a) {
			s.onKey(q, now, a)
		}
	default:
		s.onKey(q, now, a)
	}
	return true
}

// malformed refuses a request that cannot be decoded, or ends the session. It returns false if it
// has ended it.
func (s *Session) malformed(err error, a *followUp) bool {
	if f, ok := errors.AsType[*protocol.FatalError](err); ok {
		s.Fatal(f.Code, f.Msg)
		return false
	}
	f, _ := errors.AsType[*protocol.FieldError](err)
	if !s.greeted {
		s.Fatal(protocol.BadFrame, "the first request must be a good hello: "+f.Msg)
		return false
	}
	s.refuse(s.req.ID, f.Code, f.Msg, a)
	return true
}

func (s *Session) pong(id uint64, now int64, a *followUp) {
	s.write(a, func(b []byte) []byte {
		return protocol.AppendPong(b, id, uint64(now/int64(time.Millisecond)))
	})
}

func (s *Session) refuse(id uint64, c protocol.Code, msg string, a *followUp) {
	msg = shorten(msg, maxText)
	s.write(a, func(b []byte) []byte { return protocol.AppendError(b, id, c, msg, -1) })
}

// request returns the name of a request of s for the lock tables.
func (s *Session) request(id uint64) cache.Request { return cache.Request{Session: s.core, ID: id} }

// hello answers the first request of a session. It returns false if it has ended the session,
// because the client speaks no common version.
func (s *Session) hello(q *protocol.Request, now int64, a *followUp) bool {
	if q.MinVersion > protocol.Version || q.MaxVersion < protocol.MinVersion ||
		q.MinVersion > q.MaxVersion {
		s.Fatal(protocol.BadVersion,
			fmt.Sprintf("this daemon speaks versions %d to %d",
				protocol.MinVersion, protocol.Version))
		return false
	}
	s.greeted = true
	client := string(q.Name)
	if len(q.Label) > 0 {
		client += "/" + string(q.Label)
	}
	s.client.Store(&client)
	if o := s.engine.observer; o != nil {
		o.SessionBegins(s)
	}
	w := s.welcome(now)
	w.Version = min(q.MaxVersion, protocol.Version)
	s.maxFrame = int(w.MaxFrame)
	id := q.ID
	s.write(a, func(b []byte) []byte { return protocol.AppendWelcome(b, id, &w) })
	return true
}

// welcome returns the answer to hello: the limits of the daemon, and the namespaces that the peer
// may use.
func (s *Session) welcome(now int64) protocol.Welcome {
	set, all := s.engine.settings(), s.engine.routes.Load()
	main := all.routes[""] // the route of all keys outside other namespaces
	w := protocol.Welcome{
		Session: s.core.ID, Now: uint64(now / int64(time.Millisecond)), Daemon: set.Version,
		MaxFrame: uint64(set.MaxFrame),
		MinTTL:   ms(main.minTTL()), DefaultTTL: ms(main.TTL), MaxTTL: ms(main.MaxTTL),
	}
	for _, rt := range all.sorted() {
		if rt.Prefix == "" || rt.allows(&s.peer) {
			w.Namespaces = append(w.Namespaces, protocol.Namespace{Prefix: rt.Prefix,
				Store: rt.info.Name, Safety: rt.info.Safety, Heartbeat: ms(rt.Heartbeat)})
		}
	}
	if s.peer.Watched {
		w.Watch = protocol.WatchProcess
	}
	return w
}

func ms(d time.Duration) uint64 { return uint64(d.Milliseconds()) }

// terms returns an acquire's TTL and wait in nanoseconds. It applies the namespace's default TTL
// and longest wait.
func (rt *route) terms(q *protocol.Request) (ttl, wait int64) {
	ttl = int64(q.TTL) * int64(time.Millisecond)
	if ttl == 0 {
		ttl = int64(rt.TTL)
	}
	wait = q.Wait * int64(time.Millisecond)
	if q.Wait == protocol.WaitAlways {
		wait = cache.Forever
	}
	if limit := int64(rt.MaxWait); limit > 0 {
		wait = min(wait, limit)
	}
	return ttl, wait
}

// refuseAcquire refuses an acquire before any table sees it. It also counts and reports the
// refusal, as a table does for the acquires that it refuses.
func (s *Session) refuseAcquire(rt *route, q *protocol.Request, key []byte,
	code protocol.Code, err error, now int64, a *followUp,
) {
	s.beginSpan(rt, q, key, now)
	s.endSpan(q.ID, spanEnd{outcome: cache.Outcome(code)})
	s.refuse(q.ID, code, err.Error(), a)
	rt.class.refused.add(code)
	s.noteRefused(cache.Notice{Mode: q.Mode, Code: code, Key: string(key), Owner: q.Owner}, a)
}

// noteRefused tells the observer of a refused acquire that no table has reported.
func (s *Session) noteRefused(n cache.Notice, a *followUp) {
	if s.engine.audit.Load() {
		n.Kind, n.Session = cache.NoticeRefused, s.core
		a.notices = append(a.notices, n)
	}
}

// acquire handles an acquire of one key. The lock table answers it at once or queues it.
func (s *Session) acquire(q *protocol.Request, now int64, a *followUp) {
	sh, rt := s.engine.lockKey(q.Key)
	ttl, wait := rt.terms(q)
	code, err := rt.checkAcquire(&s.peer, q.Mode, ttl)
	if code == protocol.OK {
		code, err = rt.checkKeep(q, ttl)
	}
	if code != protocol.OK {
		sh.mu.Unlock()
		s.refuseAcquire(rt, q, q.Key, code, err, now, a)
		return
	}
	s.beginSpan(rt, q, q.Key, now) // for tracing
	sh.table.Acquire(&cache.Acquire{Re: s.request(q.ID), NS: rt.policy, Key: q.Key, Owner: q.Owner,
		Mode: q.Mode, Limit: uint32(q.Permits), Wait: wait, TTL: ttl,
		Fixed: q.Flags&protocol.FlagFixed != 0, Keep: int64(q.Keep) * int64(time.Millisecond),
		Draining: s.engine.draining.Load()}, now, &sh.out)
	s.engine.carryOutAndUnlock(sh, now, a)
}

// namesHolders reports whether the answer to an inspect with the flag holders can name holders. A
// store that answers inline names none. If no client of this daemon holds the key, the plain
// inspect is then better: it also finds a lease that an earlier process has left.
func (sh *shard) namesHolders(rt *route, q *protocol.Request, now int64) bool {
	if rt.inline == nil {
		return true
	}
	_, n, _ := sh.table.HoldersOf(string(q.Key), q.Mode == protocol.Permit, 1, now)
	return n > 0
}

// release ends a hold, or a detached hold of any user if anyUser is true.
func (sh *shard) release(re cache.Request, q *protocol.Request, anyUser bool, now int64) {
	r := cache.Release{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence,
		All: q.Flags&protocol.FlagAll != 0, Async: q.Flags&protocol.FlagAsync != 0,
		Now: q.Flags&protocol.FlagNow != 0}
	if q.Flags&protocol.FlagDetached != 0 {
		sh.table.ReleaseDetached(&r, anyUser, now, &sh.out)
	} else {
		sh.table.Release(&r, now, &sh.out)
	}
}

// onKey handles the requests, besides acquire, that are a single event for the table of one key.
func (s *Session) onKey(q *protocol.Request, now int64, a *followUp) {
	e, re := s.engine, s.request(q.ID)
	if q.Op == protocol.OpRelease && q.Flags&protocol.FlagQuiet != 0 {
		re.InternalReply = newQuietRelease(q)
	}
	ttl := time.Duration(q.TTL) * time.Millisecond
	sh, rt := e.lockKey(q.Key)
	code, err := protocol.OK, error(nil)
	switch {
	case q.Op == protocol.OpRenew && ttl > 0:
		code, err = rt.checkTTL(ttl)
	case q.Op == protocol.OpInspect:
		code, err = rt.checkAccess(&s.peer, q.Mode)
	}
	if code != protocol.OK {
		sh.mu.Unlock()
		s.refuse(q.ID, code, err.Error(), a)
		return
	}
	if q.Op == protocol.OpInspect && q.Flags&protocol.FlagHolders != 0 && sh.namesHolders(rt, q, now) {
		sh.mu.Unlock()
		s.inspectHolders(q, rt, now, a) // it locks the shard itself, and may query the store later
		return
	}
	switch q.Op {
	case protocol.OpRelease:
		sh.release(re, q, s.peer.UID == 0, now)
	case protocol.OpRenew:
		sh.table.Renew(&cache.Renew{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence,
			TTL: int64(ttl)}, now, &sh.out)
	case protocol.OpDowngrade:
		sh.table.Downgrade(&cache.Downgrade{Re: re, Key: q.Key, Owner: q.Owner, Fence: q.Fence},
			now, &sh.out)
	case protocol.OpCancel:
		sh.table.Cancel(re, q.Key, q.Target, now, &sh.out)
	case protocol.OpInspect:
		sh.table.Inspect(re, rt.policy, q.Key, q.Mode, now, &sh.out)
	}
	e.carryOutAndUnlock(sh, now, a)
}

// Refusals that do not depend on a table.
var (
	errDenied       = errors.New("this user may not use keys of this namespace")
	errNoSemaphores = errors.New("the store of this key has no semaphores")
)

func (rt *route) minTTL() time.Duration { return rt.info.MinTTL }

// checkAcquire reports whether a peer may acquire a key in a mode for ttl nanoseconds: protocol.OK,
// or the code and the reason of the refusal.
func (rt *route) checkAcquire(p *Peer, mode protocol.Mode, ttl int64) (protocol.Code, error) {
	if code, err := rt.checkAccess(p, mode); code != protocol.OK {
		return code, err
	}
	return rt.checkTTL(time.Duration(ttl))
}

// checkAccess reports whether a peer may use a key in a mode at all. Its results are as in
// checkAcquire.
func (rt *route) checkAccess(p *Peer, mode protocol.Mode) (protocol.Code, error) {
	switch {
	case !rt.allows(p):
		return protocol.Denied, errDenied
	case mode == protocol.Permit && !rt.info.Permits:
		return protocol.Unsupported, errNoSemaphores
	}
	return protocol.OK, nil
}

// checkTTL reports whether a key may be held for ttl. Its results are as in checkAcquire.
func (rt *route) checkTTL(ttl time.Duration) (protocol.Code, error) {
	switch {
	case ttl < rt.minTTL():
		return protocol.Invalid,
			fmt.Errorf("ttl of %v is shorter than the store's minimum of %v", ttl, rt.minTTL())
	case ttl > rt.MaxTTL:
		return protocol.Invalid,
			fmt.Errorf("ttl of %v is longer than the limit of %v", ttl, rt.MaxTTL)
	}
	return protocol.OK, nil
}

// checkKeep reports whether an acquire with this TTL may have its keep. Its results are as in
// checkAcquire.
func (rt *route) checkKeep(q *protocol.Request, ttl int64) (protocol.Code, error) {
	keep, limit, of := time.Duration(q.Keep)*time.Millisecond, rt.MaxTTL, "limit"
	if rt.MaxHold > 0 && rt.MaxHold < limit {
		limit, of = rt.MaxHold, "longest hold"
	}
	if q.Flags&protocol.FlagFixed != 0 && time.Duration(ttl) < limit {
		limit, of = time.Duration(ttl), "ttl of a fixed hold"
	}
	if keep > limit {
		return protocol.Invalid, fmt.Errorf("keep of %v is longer than the %s of %v", keep, of, limit)
	}
	return protocol.OK, nil
}

// allows reports whether a peer may use the keys.
func (rt *route) allows(p *Peer) bool {
	return len(rt.Users) == 0 && len(rt.Groups) == 0 || (&Access{rt.Users, rt.Groups}).includes(p)
}
