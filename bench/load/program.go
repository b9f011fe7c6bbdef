package load

import (
	"net"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// The names of loads and servers that frames does not name.
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

// Program is what the bench driver, and tests that run loads, are started as.
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
