package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// HolderKind is the kind of a Holder.
type HolderKind uint8

// The kinds of holders. A later version may have others.
const (
	// A client of this daemon. If Session is 0, it is a detached hold if Fence is not 0, and else this
	// host without a client.
	HolderHere HolderKind = 1
	// A daemon that has registered in the store, on another host or this one.
	HolderDaemon       HolderKind = 2
	HolderUnregistered HolderKind = 3 // a daemon without a registration, such as an older version
	HolderForeign      HolderKind = 4 // another program that uses the store's locks
)

var holderKinds = [...]string{HolderHere: "here", HolderDaemon: "daemon",
	HolderUnregistered: "unregistered", HolderForeign: "foreign"}

// String returns the kind's name in JSON.
func (k HolderKind) String() string {
	if k > 0 && int(k) < len(holderKinds) {
		return holderKinds[k]
	}
	return "kind_" + strconv.Itoa(int(k))
}

// MarshalText encodes the kind as its name.
func (k HolderKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText decodes what MarshalText wrote. An unknown name becomes 0.
func (k *HolderKind) UnmarshalText(b []byte) error {
	*k = 0
	for i, name := range holderKinds {
		if i > 0 && name == string(b) {
			*k = HolderKind(i)
		}
	}
	return nil
}

// Holder is a holder of a key, as far as the daemon that was asked can name it. Times are in
// milliseconds, and -1 when not known, unless the field says otherwise.
type Holder struct {
	Kind    HolderKind `json:"kind"`
	Host    string     `json:"host,omitempty"`       // host name of the daemon
	Version string     `json:"version,omitempty"`    // version of the daemon
	Daemon  uint64     `json:"daemon_pid,omitempty"` // process id of the daemon
	// Started is when the daemon started, since 1970; 0 when not known.
	Started int64 `json:"-"`
	Held    int64 `json:"held_ms"` // time since the lock was granted
	// Left is the time until the lease ends unless it is renewed.
	Left int64  `json:"left_ms"`
	Name string `json:"name,omitempty"` // name of the holder in the store's terms
	// Note is a remark for people, such as Redlock nodes that disagree.
	Note string `json:"note,omitempty"`
	// Session identifies a client of this daemon. The fields below describe the same client.
	Session uint64 `json:"session,omitempty"`
	PID     uint64 `json:"pid,omitempty"`    // 0 when not known
	UID     int64  `json:"uid"`              // -1 when not known
	Client  string `json:"client,omitempty"` // its name and label
	Fence   uint64 `json:"fence,string,omitempty"`
}

// String names the holder for people. Hosts and clients choose their names, so the text may have
// control characters: escape it before it is shown.
func (h *Holder) String() string {
	var s string
	switch h.Kind {
	case HolderHere:
		s = h.client()
	case HolderDaemon:
		s = h.Host
	case HolderUnregistered:
		s = "an unregistered daemon"
	case HolderForeign:
		s = "another program"
	default:
		s = "another host"
	}
	if h.Note != "" {
		s += " (" + h.Note + ")"
	}
	return s
}

func (h *Holder) client() string {
	switch {
	case h.Session == 0 && h.Fence != 0 && h.UID >= 0: // a detached hold
		return "user " + strconv.FormatInt(h.UID, 10)
	case h.Session == 0:
		return "this host"
	case h.PID == 0 && h.Client == "":
		return "session " + itoa(h.Session)
	case h.PID == 0:
		return h.Client
	case h.Client == "":
		return "process " + itoa(h.PID)
	}
	return fmt.Sprintf("process %d (%s)", h.PID, h.Client)
}

// Holders names at most three of several holders for people, and counts the others. Like the text
// of String, the result must be escaped before it is shown.
func Holders(hs []Holder) string {
	const limit = 3
	var names []string
	for i := range hs {
		if i == limit {
			return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", len(hs)-limit)
		}
		names = append(names, hs[i].String())
	}
	return strings.Join(names, ", ")
}

// holderFields is the number of fields of a holder on the wire.
const holderFields = 14

func appendHolder(b []byte, h *Holder) []byte {
	b = appendArray(b, holderFields)
	b = appendUint(b, uint64(h.Kind))
	b = appendStr(b, h.Host)
	b = appendStr(b, h.Version)
	b = appendUint(b, h.Daemon)
	b = appendInt(b, h.Started)
	b = appendInt(b, h.Held)
	b = appendInt(b, h.Left)
	b = appendStr(b, h.Name)
	b = appendStr(b, h.Note)
	b = appendUint(b, h.Session)
	b = appendUint(b, h.PID)
	b = appendInt(b, h.UID)
	b = appendStr(b, h.Client)
	return appendUint(b, h.Fence)
}

func appendHolders(b []byte, hs []Holder) []byte {
	b = appendArray(b, len(hs))
	for i := range hs {
		b = appendHolder(b, &hs[i])
	}
	return b
}

// holders reads the list of holders. It returns none for a message from an older daemon, which does
// not send them.
func (m *Message) holders() (hs []Holder, err error) {
	if m.f.left == 0 {
		return nil, nil
	}
	err = m.entries(holderFields, func() error {
		var h Holder
		var kind uint64
		err := m.get(&kind, &h.Host, &h.Version, &h.Daemon, &h.Started, &h.Held, &h.Left,
			&h.Name, &h.Note,
			&h.Session, &h.PID, &h.UID, &h.Client, &h.Fence)
		h.Kind = HolderKind(min(kind, 255))
		hs = append(hs, h)
		return err
	})
	return hs, err
}
