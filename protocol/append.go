package protocol

// AppendRequest appends q as one frame. It is the inverse of DecodeRequest. It checks nothing, so
// that tests can send requests that a daemon must refuse.
func AppendRequest(b []byte, q *Request) []byte {
	b, at := openFrame(b)
	switch q.Op {
	case OpHello:
		b = appendHead(b, 6, q)
		b = appendUint(b, q.MinVersion)
		b = appendUint(b, q.MaxVersion)
		b = appendStr(b, q.Name)
		b = appendStr(b, q.Label)
	case OpAcquire:
		b = appendAcquire(b, q)
	case OpRelease:
		b = appendHold(b, 6, q)
		b = appendUint(b, q.Flags)
	case OpRenew:
		b = appendHold(b, 6, q)
		b = appendUint(b, q.TTL)
	case OpDowngrade:
		b = appendHold(b, 5, q)
	case OpCancel:
		b = appendHead(b, 4, q)
		b = appendUint(b, q.Target)
		b = appendStr(b, q.Key)
	case OpInspect:
		b = appendInspect(b, q)
	case OpAcquireMany, OpAcquireAny:
		b = appendHead(b, 8+given(uint64(len(q.Trace))), q)
		b = appendArray(b, len(q.Keys))
		for _, k := range q.Keys {
			b = appendStr(b, k)
		}
		b = appendTerms(b, q)
		if len(q.Trace) > 0 {
			b = appendStr(b, q.Trace)
		}
	case OpReleaseMany:
		b = appendHead(b, 5, q)
		b = appendArray(b, len(q.Keys))
		for i, k := range q.Keys {
			b = appendArray(b, 2)
			b = appendStr(b, k)
			b = appendUint(b, q.Fences[i])
		}
		b = appendUint(b, q.Owner)
		b = appendUint(b, q.Flags)
	case OpList, OpStored:
		b = appendHead(b, 5, q)
		b = appendStr(b, q.Prefix)
		b = appendStr(b, q.After)
		b = appendUint(b, q.Limit)
	case OpForceUnlock:
		b = appendHead(b, 5, q)
		b = appendStr(b, q.Key)
		b = appendUint(b, uint64(q.Mode))
		b = appendUint(b, q.Fence)
	default: // ping, and requests without fields
		b = appendHead(b, 2, q)
	}
	return closeFrame(b, at)
}

// appendHead appends the header of an array of n elements, the op and the id.
func appendHead(b []byte, n int, q *Request) []byte {
	b = appendArray(b, n)
	b = appendUint(b, uint64(q.Op))
	return appendUint(b, q.ID)
}

// appendHold appends the head and the fields that name a hold.
func appendHold(b []byte, n int, q *Request) []byte {
	b = appendHead(b, n, q)
	b = appendStr(b, q.Key)
	b = appendUint(b, q.Owner)
	return appendUint(b, q.Fence)
}

// appendTerms appends the fields of an acquire after its keys.
func appendTerms(b []byte, q *Request) []byte {
	b = appendUint(b, q.Owner)
	b = appendUint(b, uint64(q.Mode))
	b = appendInt(b, q.Wait)
	b = appendUint(b, q.TTL)
	return appendUint(b, q.Flags)
}

func appendAcquire(b []byte, q *Request) []byte {
	more := max(given(q.Permits), 2*given(uint64(len(q.Trace))), 3*given(q.Keep))
	b = appendHead(b, 8+more, q)
	b = appendStr(b, q.Key)
	b = appendTerms(b, q)
	if more > 0 {
		b = appendUint(b, q.Permits)
	}
	if more > 1 {
		b = appendStr(b, q.Trace)
	}
	if more > 2 {
		b = appendUint(b, q.Keep)
	}
	return b
}

func appendInspect(b []byte, q *Request) []byte {
	fields := 3 + given(uint64(q.Mode))
	if q.Flags != 0 {
		fields = 5
	}
	b = appendHead(b, fields, q)
	b = appendStr(b, q.Key)
	if fields > 3 {
		b = appendUint(b, uint64(q.Mode))
	}
	if fields > 4 {
		b = appendUint(b, q.Flags)
	}
	return b
}

// given returns the number of array elements for a last field, which is left out if it is 0.
func given(v uint64) int { return int(min(v, 1)) }

func appendReplyHead(b []byte, n int, c Code, id uint64) []byte {
	b = appendArray(b, n)
	b = appendUint(b, uint64(c))
	return appendUint(b, id)
}

func appendPushHead(b []byte, n int, e Event) []byte {
	b = appendArray(b, n)
	b = appendUint(b, uint64(e))
	return append(b, 0)
}

// AppendWelcome appends the answer to a hello.
func AppendWelcome(b []byte, id uint64, w *Welcome) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 12, OK, id)
	b = appendUint(b, w.Version)
	b = appendUint(b, w.Session)
	b = appendUint(b, w.Now)
	b = appendUint(b, w.MaxFrame)
	b = appendUint(b, w.MinTTL)
	b = appendUint(b, w.DefaultTTL)
	b = appendUint(b, w.MaxTTL)
	b = appendUint(b, uint64(w.Watch))
	b = appendArray(b, len(w.Namespaces))
	for _, n := range w.Namespaces {
		width := 3
		if n.Heartbeat > 0 {
			width++
		}
		b = appendArray(b, width)
		b = appendStr(b, n.Prefix)
		b = appendStr(b, n.Store)
		b = appendStr(b, n.Safety)
		if n.Heartbeat > 0 {
			b = appendUint(b, n.Heartbeat)
		}
	}
	b = appendStr(b, w.Daemon)
	return closeFrame(b, at)
}

// AppendGrant appends the success of acquire, renew or downgrade.
func AppendGrant(b []byte, id uint64, g *Grant) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 8, OK, id)
	return closeFrame(appendGrantFields(b, g), at)
}

func appendGrantFields(b []byte, g *Grant) []byte {
	b = appendUint(b, g.Fence)
	b = appendUint(b, g.Left)
	b = appendUint(b, g.Deadline)
	b = appendUint(b, g.Count)
	b = appendUint(b, g.End)
	return appendUint(b, g.Flags)
}

// AppendGrants appends the success of an acquire-many.
func AppendGrants(b []byte, id uint64, gs []Grant) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 3, OK, id)
	b = appendArray(b, len(gs))
	for i := range gs {
		b = appendArray(b, 6)
		b = appendGrantFields(b, &gs[i])
	}
	return closeFrame(b, at)
}

// AppendGrantOf appends the success of an acquire-any: the grant of the key with this index.
func AppendGrantOf(b []byte, id uint64, g *Grant, index uint64) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 9, OK, id)
	b = appendGrantFields(b, g)
	return closeFrame(appendUint(b, index), at)
}

// AppendReleased appends the success of a release: the remaining count.
func AppendReleased(b []byte, id, count uint64) []byte {
	return appendNumber(b, id, count)
}

// AppendCanceled appends the success of a cancel: whether it has withdrawn a request.
func AppendCanceled(b []byte, id uint64, found bool) []byte {
	var n uint64
	if found {
		n = 1
	}
	return appendNumber(b, id, n)
}

// AppendUnlocked appends the success of a force-unlock: the number of holds that it has ended.
func AppendUnlocked(b []byte, id, ended uint64) []byte {
	return appendNumber(b, id, ended)
}

// AppendPong appends the success of a ping: the daemon's clock, in milliseconds.
func AppendPong(b []byte, id, now uint64) []byte {
	return appendNumber(b, id, now)
}

func appendNumber(b []byte, id, v uint64) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 3, OK, id)
	return closeFrame(appendUint(b, v), at)
}

// AppendCodes appends the success of a release-many: one code per key.
func AppendCodes(b []byte, id uint64, codes []Code) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 3, OK, id)
	b = appendArray(b, len(codes))
	for _, c := range codes {
		b = appendUint(b, uint64(c))
	}
	return closeFrame(b, at)
}

// AppendInspected appends the success of an inspect.
func AppendInspected(b []byte, id uint64, s *State) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 8+min(1, len(s.By)), OK, id)
	b = appendUint(b, uint64(s.Held))
	b = appendUint(b, uint64(s.Mode))
	b = appendUint(b, s.Holders)
	b = appendUint(b, s.Waiters)
	b = appendInt(b, s.Left)
	b = appendUint(b, s.Fence)
	if len(s.By) > 0 {
		b = appendHolders(b, s.By)
	}
	return closeFrame(b, at)
}

// AppendList appends one page of a list. next is where the following page starts; it is empty on
// the last page.
func AppendList(b []byte, id uint64, rows []Row, next string) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 4, OK, id)
	b = appendArray(b, len(rows))
	for i := range rows {
		b = appendRow(b, &rows[i])
	}
	b = appendStr(b, next)
	return closeFrame(b, at)
}

func appendRow(b []byte, r *Row) []byte {
	fields := 9
	if r.Detached {
		fields++
	}
	b = appendArray(b, fields)
	b = appendStr(b, r.Key)
	b = appendUint(b, uint64(r.Mode))
	b = appendUint(b, r.Holders)
	b = appendUint(b, r.Waiters)
	b = appendUint(b, r.Fence)
	b = appendInt(b, r.Left)
	b = appendUint(b, r.Session)
	b = appendUint(b, r.PID)
	b = appendStr(b, r.Client)
	if r.Detached {
		b = appendInt(b, r.UID)
	}
	return b
}

// AppendStored appends one page of the locks that the stores know.
func AppendStored(b []byte, id uint64, rows []StoredRow, next string) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 4, OK, id)
	b = appendArray(b, len(rows))
	for i := range rows {
		r := &rows[i]
		b = appendArray(b, 9+min(1, len(r.By)))
		b = appendStr(b, r.Key)
		b = appendStr(b, r.Store)
		b = appendStr(b, r.Name)
		b = appendUint(b, uint64(r.Mode))
		b = appendStr(b, r.Holder)
		b = appendUint(b, uint64(r.Whose))
		b = appendInt(b, r.Left)
		b = appendInt(b, r.Waiters)
		b = appendUint(b, r.Base)
		if len(r.By) > 0 {
			b = appendHolders(b, r.By)
		}
	}
	b = appendStr(b, next)
	return closeFrame(b, at)
}

// AppendError appends a failure. left is used for Busy only: the milliseconds until the present
// lease ends, or -1 when that is not known.
func AppendError(b []byte, id uint64, c Code, msg string, left int64) []byte {
	b, at := openFrame(b)
	n := 3
	if c == Busy {
		n = 4
	}
	b = appendReplyHead(b, n, c, id)
	b = appendStr(b, msg)
	if c == Busy {
		b = appendInt(b, left)
	}
	return closeFrame(b, at)
}

// AppendManyError appends the failure of an acquire-many: nothing is held, and index is the first
// key that could not be acquired.
func AppendManyError(b []byte, id uint64, c Code, msg string, index uint64) []byte {
	b, at := openFrame(b)
	b = appendReplyHead(b, 4, c, id)
	b = appendStr(b, msg)
	b = appendUint(b, index)
	return closeFrame(b, at)
}

// AppendLost appends the push which reports that a hold is gone.
func AppendLost(b []byte, key string, owner, fence uint64, r Reason) []byte {
	b, at := openFrame(b)
	b = appendPushHead(b, 6, EventLost)
	b = appendStr(b, key)
	b = appendUint(b, owner)
	b = appendUint(b, fence)
	b = appendUint(b, uint64(r))
	return closeFrame(b, at)
}

// AppendKeepalive appends a keepalive: the push which states that every hold not reported lost is
// valid until the given time, in milliseconds of the daemon's clock. That time is left milliseconds
// away.
func AppendKeepalive(b []byte, until, left uint64) []byte {
	b, at := openFrame(b)
	b = appendPushHead(b, 4, EventKeepalive)
	b = appendUint(b, until)
	b = appendUint(b, left)
	return closeFrame(b, at)
}

// AppendGoingAway appends the push which announces that the daemon drains: in drain milliseconds
// every remaining hold will be lost.
func AppendGoingAway(b []byte, drain uint64, msg string) []byte {
	b, at := openFrame(b)
	b = appendPushHead(b, 4, EventGoingAway)
	b = appendUint(b, drain)
	b = appendStr(b, msg)
	return closeFrame(b, at)
}

// AppendReleaseFailed appends the push which reports that the quiet release of a hold has failed.
func AppendReleaseFailed(b []byte, key string, owner, fence uint64, c Code, msg string) []byte {
	b, at := openFrame(b)
	b = appendPushHead(b, 7, EventReleaseFailed)
	b = appendStr(b, key)
	b = appendUint(b, owner)
	b = appendUint(b, fence)
	b = appendUint(b, uint64(c))
	b = appendStr(b, msg)
	return closeFrame(b, at)
}

// AppendFatal appends the last frame of a connection that the daemon ends.
func AppendFatal(b []byte, c Code, msg string) []byte {
	b, at := openFrame(b)
	b = appendPushHead(b, 4, EventFatal)
	b = appendUint(b, uint64(c))
	b = appendStr(b, msg)
	return closeFrame(b, at)
}
