package load

import (
	"net"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// The names of the other loads and servers.
const (
	Frames    = "frames"
	Chain     = "chain"
	Sidecar   = "locksidecar"
	Turnstile = "turnstile"
	Open      = "open"
	Affine    = "affine"
	Hosts     = "hosts"
	Line      = "line"
	Relay     = "relay"
	Abuse     = "abuse"
	Crowd     = "crowd"
)

// Program is what the bench driver, and the tests that run loads, can be started as.
var Program = harness.Program{
	Loads: map[string]func() harness.Load{
		Frames:  NewFrames,
		Chain:   NewChain,
		Open:    NewOpen,
		Hosts:   NewHosts,
		Affine:  NewAffine(OpenSidecar),
		Crowd:   NewCrowd,
		Sidecar: NewPairs(OpenSidecar),
	},
	Servers: map[string]func(l net.Listener) error{
		Echo:      ServeEcho,
		Turnstile: ServeTurnstile,
		Line:      ServeLine,
		Relay:     ServeRelay,
		Abuse:     ServeAbuse,
	},
}
