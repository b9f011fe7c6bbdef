package main

import (
	"testing"

	"github.com/locksidecar/locksidecar/upstream/storetest"
)

func TestWhatWasSeenOfPlacesIsComplete(t *testing.T) {
	var p places
	at := p.at("place")
	at.high.Store(77)
	at.fences.SawBase(1 << 40)
	storetest.Complete{Root: &p,
		Snapshot: func() ([]byte, error) { return p.leave(), nil },
		Again: func(b []byte) ([]byte, error) {
			var next places
			err := next.arrive(b)
			return next.leave(), err
		},
		LeftOut: map[string]string{
			"upstream.FenceClock.now":     "see the test of FenceClock",
			"upstream.FenceClock.lead":    "see the test of FenceClock",
			"upstream.FenceClock.earlier": "see the test of FenceClock",
			"upstream.FenceClock.began":   "see the test of FenceClock",
		},
	}.Check(t)
}
