package protocol

import (
	"encoding/json"
	"testing"
)

func TestHolderForPeople(t *testing.T) {
	for want, h := range map[string]Holder{
		"web-3": {Kind: HolderDaemon, Host: "web-3"},
		"web-3 (not on a:1; no answer from b:2)": {Kind: HolderDaemon, Host: "web-3",
			Note: "not on a:1; no answer from b:2"},
		"an unregistered daemon": {Kind: HolderUnregistered, Name: "wThcjhdMeW3Yi7_GUSIGTQ"},
		"another program":        {Kind: HolderForeign, Name: "theirs"},
		"another host":           {Kind: 77, Host: "web-3"},
		"process 815 (backup/nightly)": {Kind: HolderHere, Session: 9, PID: 815,
			Client: "backup/nightly"},
		"process 815": {Kind: HolderHere, Session: 9, PID: 815},
		"backup":      {Kind: HolderHere, Session: 9, Client: "backup"},
		"session 9":   {Kind: HolderHere, Session: 9},
		"this host":   {Kind: HolderHere},
	} {
		if got := h.String(); got != want {
			t.Errorf("%+v is %q, not %q", h, got, want)
		}
	}
	web := Holder{Kind: HolderDaemon, Host: "w"}
	for n, want := range []string{"", "w", "w, w", "w, w, w", "w, w, w and 1 more"} {
		hs := make([]Holder, n)
		for i := range hs {
			hs[i] = web
		}
		if got := Holders(hs); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestHolderInJSON(t *testing.T) {
	for k := HolderKind(1); k <= HolderForeign; k++ {
		h := Holder{Kind: k, Host: "web-3", Held: -1, Left: 5, UID: -1, Fence: 1 << 62}
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var again Holder
		if err := json.Unmarshal(b, &again); err != nil || again != h {
			t.Errorf("%s is %+v, %v", b, again, err)
		}
	}
	var h Holder
	if err := json.Unmarshal([]byte(`{"kind":"of a later version"}`), &h); err != nil || h.Kind != 0 {
		t.Errorf("%+v, %v", h, err)
	}
}

// Replies may come without holders, from an older daemon, or with a holder that lacks a field.
func TestInspectedWithoutHolders(t *testing.T) {
	read := func(frame []byte) (State, error) {
		m, err := DecodeMessage(frame[HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		return m.State()
	}
	if s, err := read(AppendInspected(nil, 1, &State{Held: HeldThere, Left: -1})); err != nil ||
		s.By != nil {
		t.Errorf("%+v, %v", s, err)
	}
	b, at := openFrame(nil)
	b = appendReplyHead(b, 9, OK, 3)
	for range 6 {
		b = appendUint(b, 0)
	}
	b = appendArray(b, 1)
	b = appendArray(b, holderFields-1)
	for range holderFields - 1 {
		b = appendUint(b, 0)
	}
	if s, err := read(closeFrame(b, at)); err == nil {
		t.Errorf("%+v", s)
	}
}
