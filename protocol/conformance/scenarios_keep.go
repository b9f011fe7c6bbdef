package conformance

// Section 8: detached holds.

func (t *T) releaseDetached(key string, f Fence) *pending {
	return t.send(Command{"do": "release_detached", "key": key, "fence": f})
}

func keep(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	const hour = 3600_000
	f := t.acquire(want{key: "k", keep: hour}).fence()
	t.releaseDetached("k", f).fails("not_held") // it is not detached yet
	t.mustHold("k", f, "it is not detached")
	t.release("k", f).ok()
	t.mustNotHold("k", f, "after its release")
	p.excluded("k", "the client has released it, and its keep is not over")
	t.releaseDetached("k", f+1).fails("not_held")
	t.releaseDetached("k", f).ok()
	p.free("k", "the client has released the detached hold")

	f = t.acquire(want{key: "k", keep: hour}).fence()
	t.send(Command{"do": "release", "key": "k", "owner": 1, "fence": f, "now": true}).ok()
	p.free("k", "the client has released it now")

	t.acquire(want{key: "k", keep: hour}).fence()
	t.send(Command{"do": "close"}).ok()
	t.poll("the end of the session", func() bool {
		s, err := p.c.Inspect(t.ctx, "k")
		t.must(err)
		return s.Held == 1
	})
	p.excluded("k", "the client has closed, and its keep is not over")
}
