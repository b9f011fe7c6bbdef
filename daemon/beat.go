package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// beatBy makes Tick run at the time given, for a beat.
func (e *Engine) beatBy(at int64) {
	for {
		next := e.nextBeat.Load()
		if at >= next {
			return
		}
		if e.nextBeat.CompareAndSwap(next, at) {
			e.wake(at)
			return
		}
	}
}

// beats tells each session that holds something, and is due, until when
// everything that it has not been told lost is valid.
func (e *Engine) beats(now int64, a *aftermath) {
	if e.nextBeat.Load() > now {
		return
	}
	e.nextBeat.Store(cache.Forever)
	all := e.all()
	slices.SortFunc(all, func(a, b *Session) int { return cmp.Compare(a.core.ID, b.core.ID) })
	for _, s := range all {
		e.beat(s, now, a)
	}
	e.lookForCycles(now, all)
}

// beat is one session's. A grant that is made while the shards are asked is
// counted by the outbox's floor; one that is made after the beat is queued
// reaches the client behind it, and a beat says nothing about later grants.
func (e *Engine) beat(s *Session, now int64, a *aftermath) {
	s.mu.Lock()
	at := s.beatAt
	// One that is nearly due goes along, so that thousands of sessions beat
	// together in a few rounds.
	if at == cache.Forever || at-s.beatEvery/4 > now || s.killed {
		s.mu.Unlock()
		if at != cache.Forever {
			e.beatBy(at)
		}
		return
	}
	s.beatAt, s.floor = cache.Forever, cache.Forever
	s.mu.Unlock()

	heard := s.heard.Load()
	w := cache.Watermark{Until: cache.Forever}
	mask := s.core.Shards.Load()
	for i := range e.shards {
		if mask&(1<<i) == 0 {
			continue
		}
		sh := e.lock(i)
		w.Join(sh.table.Watermark(s.core, now))
		sh.mu.Unlock()
	}
	if w.TTL == 0 {
		return // it holds nothing; the next grant sets the next beat
	}
	ttl, until := w.TTL, w.Until
	if w.Heartbeat > 0 {
		if now-heard >= w.Heartbeat {
			e.loseSilent(s, heard, now, a)
		}
		ttl, until = min(ttl, w.Heartbeat), min(until, heard+w.Heartbeat)
	}

	s.mu.Lock()
	until = min(until, s.floor)
	if until > now && !s.killed && !s.ended.Load() {
		s.stated = max(s.stated, until)
		s.out = protocol.AppendBeat(s.out, uint64(until/int64(time.Millisecond)), uint64((until-now)/int64(time.Millisecond)))
	}
	s.beatEvery = ttl / 3
	s.beatAt = min(s.beatAt, now+s.beatEvery)
	if w.Heartbeat > 0 {
		s.beatAt = min(s.beatAt, max(now+1, heard+w.Heartbeat))
	}
	next := s.beatAt
	s.mu.Unlock()
	e.beatBy(next)
	a.mark(s)
}

// loseSilent ends what a session that has not been heard of may not keep.
func (e *Engine) loseSilent(s *Session, heard, now int64, a *aftermath) {
	mask := s.core.Shards.Load()
	for i := range e.shards {
		if mask&(1<<i) == 0 {
			continue
		}
		sh := e.lock(i)
		sh.table.LoseSilent(s.core, heard, now, &sh.out)
		e.unlock(sh, i, now, a)
	}
}
