package sim

import (
	"encoding/binary"

	"github.com/locksidecar/locksidecar/protocol"
)

// startFaults schedules each kind of fault of the profile, again and again.
func (w *World) startFaults() {
	for f := range nFaults {
		mean := w.p.Faults[f]
		if mean == 0 || f == hostLag || f >= lostRequest && f <= hintDoubled {
			continue // those are permille of steps or messages
		}
		var again func()
		again = func() {
			if w.calm {
				return
			}
			if w.strike(f) {
				w.counts.Faults[f]++
				w.note(kindFault, nil, uint64(f), 0)
				w.say(nil, "FAULT %v", f)
			}
			w.after(w.skewed(mean)+ms, again)
		}
		w.after(w.skewed(mean)+ms, again)
	}
}

// while draws how long a fault lasts: very short, for a while, or longer than any TTL.
func (w *World) while() int64 {
	switch w.pick(4) {
	case 0:
		return w.between(ms, 100*ms)
	case 1, 2:
		return w.between(100*ms, 3*sec)
	}
	return w.between(3*sec, 20*sec)
}

// strike makes one fault. It returns false if the fault is not possible just now.
func (w *World) strike(f fault) bool {
	h, c := w.hosts[w.pick(len(w.hosts))], w.clients[w.pick(len(w.clients))]
	switch f {
	case hostFreeze, hostSuspend, hostFreezeMid, hostKill, hostDrain, hostTakeover,
		hostReload, partition:
		return w.strikeHost(f, h)
	case clientPause, clientKill, clientLeave, clientUnresponsive, clientFlood, clientGarbage,
		clientSilent:
		return w.strikeClient(f, c)
	case operator:
		h.force()
		return false // counted when it has ended something
	}
	all := w.sites()
	return w.strikeStore(f, h, all[w.pick(len(all))])
}

func (w *World) strikeHost(f fault, h *host) bool {
	if !h.up {
		return false
	}
	switch f {
	case hostFreeze:
		h.freeze(w.while())
	case hostSuspend:
		d := w.while()
		h.freeze(d)
		for _, c := range h.clients() {
			c.pause(d)
		}
	case hostFreezeMid:
		h.midway = w.while()
		return false // counted when it has happened
	case hostKill:
		h.kill()
		h.restart(w.between(ms, 3*sec))
	case hostDrain:
		if h.draining {
			return false
		}
		h.after(0, func() { h.drain(w.between(0, 3*sec)) })
	case hostTakeover:
		if !h.draining && !h.passing {
			without := w.p.Namespaces > 0 && !w.p.Calm && !w.p.Move && w.chance(200)
			h.after(0, func() { h.takeOver(20_000, without) })
		}
		return false // counted when it has happened
	case hostReload:
		h.after(0, h.reload)
		return false // counted when it has happened
	case partition:
		lines := h.lines()
		until, one := w.now+w.while(), w.pick(2*len(lines)) // or all of them
		for i, l := range lines {
			if one >= len(lines) || i == one {
				l.cutOff = until
				w.say(nil, "host %d cut off from %s for %d ms", h.id, l.name, (until-w.now)/ms)
			}
		}
	}
	return true
}

func (w *World) strikeClient(f fault, c *client) bool {
	switch f {
	case clientPause:
		c.pause(w.while())
		return true
	case clientKill:
		c.kill()
		return true
	}
	if c.k == nil || c.paused > w.now {
		return false
	}
	switch f {
	case clientLeave:
		c.close()
		c.reconnect()
	case clientUnresponsive:
		c.stopReading(w.while())
	case clientSilent:
		if c.silent = w.now + w.while(); w.p.Stalls {
			c.stall()
		}
		w.say(nil, "client %d is silent for %d ms", c.id, (c.silent-w.now)/ms)
	case clientFlood:
		c.stopReading(w.while())
		c.flood()
	case clientGarbage:
		c.k.say(w.garbage(), nil, false)
	}
	return true
}

// linkTo returns a link to a store; nil if there is none.
func (h *host) linkTo(s *simStore) *link {
	for _, l := range h.links {
		if l.s == s {
			return l
		}
	}
	return nil
}

// lineTo returns a link to a store, which may be one of a pair; nil if there is none.
func (h *host) lineTo(s *simStore) *link {
	for _, l := range h.lines() {
		if l.s == s {
			return l
		}
	}
	return nil
}

// garbage returns bytes that are fatal wherever they arrive.
func (w *World) garbage() []byte {
	switch w.pick(5) {
	case 0:
		return []byte{0, 0, 0, 0}
	case 3: // a second hello
		return protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: 1,
			MaxVersion: 1})
	case 1:
		return []byte{0xff, 0xff, 0xff, 0xff, 1}
	case 2:
		return []byte{0, 0, 0, 5, 0xdd, 0xff, 0xff, 0xff, 0xff} // claims 4 billion entries
	}
	b := protocol.AppendRequest(nil, &protocol.Request{Op: protocol.OpPing, ID: 1})
	b[protocol.HeaderLen] = 0xc1
	binary.BigEndian.PutUint32(b, uint32(len(b)-protocol.HeaderLen))
	return b
}

func (w *World) strikeStore(f fault, h *host, s *simStore) bool {
	switch f {
	case storePause:
		s.paused = max(s.paused, w.now+w.while()/2)
	case storeRefuse:
		s.full = w.now + w.while()
	case storeReadOnly:
		s.readOnly = w.now + w.while()
	case storeRestart:
		if s.kind == likeEmbedded {
			return false // it restarts with its daemon
		}
		s.net++
		s.paused = max(s.paused, w.now+w.between(ms, sec))
	case storeFlush, storeLoss:
		if s.kind != likeRedis || s.clock()/us <= int64(s.highest) {
			// Fences outlast the loss of the counter or a clock that is set back, but not both at once.
			return false
		}
		s.redis.flush()
		s.lost(nil)
		if f == storeLoss {
			s.net++
			s.paused = max(s.paused, w.now+w.between(ms, sec))
		}
	case clockForward:
		if s.kind != likeRedis {
			return false
		}
		s.off += w.between(sec, 30*sec)
		s.lost(nil)
	case clockBack:
		if s.kind != likeRedis || s.redis.last < s.highest {
			return false // fences would not outlast both losses: see above
		}
		s.off -= w.between(ms, 20*sec)
	case sessionEnd:
		l := h.lineTo(s)
		if l == nil || s.kind != likeEtcd || l.session.id == 0 || !s.etcd.alive(l.session.id) {
			return false
		}
		s.lost(h)
		s.etcd.endSession(l.session.id)
	}
	return true
}
