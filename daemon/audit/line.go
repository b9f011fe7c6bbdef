package audit

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// lineWriter appends lines of the audit log: JSON in the form that zap gives to the rest of the
// log. There are two lines for each lock, so they are written by hand, at a tenth of the cost of
// zap's fields and encoder.
type lineWriter struct {
	b    []byte
	time []byte // the beginning of each line
	hide bool   // hash keys
}

// noticeText has the text that all lines of a kind have in common.
var noticeText = [...]struct{ begin, took string }{
	cache.NoticeAcquired: {`","msg":"acquired","key":`, `,"event":"acquired","wait_ms":`},
	cache.NoticeRefused:  {`","msg":"refused","key":`, `,"event":"refused","wait_ms":`},
	cache.NoticeReleased: {`","msg":"released","key":`, `,"event":"released","hold_ms":`},
	cache.NoticeDetached: {`","msg":"detached","key":`, `,"event":"detached","hold_ms":`},
}

// modeText has the field of each mode, and the name of the owner's field, which follows it.
var modeText = [...]string{
	protocol.Exclusive: ownerOf(protocol.Exclusive),
	protocol.Shared:    ownerOf(protocol.Shared),
	protocol.Permit:    ownerOf(protocol.Permit),
}

func ownerOf(m protocol.Mode) string { return `,"mode":"` + m.String() + `","owner":` }

// notice appends the line of a notice.
func (w *lineWriter) notice(n *cache.Notice) {
	text := &noticeText[n.Kind]
	w.b = append(append(w.b, w.time...), text.begin...)
	if w.hide {
		w.quoted(hashed(n.Key))
	} else {
		w.quoted(n.Key)
	}
	w.text(modeText[n.Mode])
	w.number(n.Owner)
	if n.Kind != cache.NoticeRefused {
		w.text(`,"fence":`)
		w.number(n.Fence)
	}
	if n.Degraded {
		w.text(`,"degraded":true`)
	}
	w.text(text.took)
	w.millis(n.Took)
	switch n.Kind {
	case cache.NoticeRefused:
		w.text(`,"code":"`)
		w.text(n.Code.String())
		w.text(`"`)
	case cache.NoticeReleased:
		w.text(`,"cause":"`)
		w.text(engine.CauseLabels[n.Cause])
		w.text(`"`)
	}
	w.who(engine.SessionOf(n.Session))
}

// session appends the line of a session that begins or ends.
func (w *lineWriter) session(s *engine.Session, event string) {
	w.b = append(w.b, w.time...)
	w.text(`","msg":"`)
	w.text(event)
	w.text(`","event":"`)
	w.text(event)
	w.text(`","uid":`)
	w.b = strconv.AppendInt(w.b, int64(s.Peer().UID), 10)
	w.text(`,"gid":`)
	w.b = strconv.AppendInt(w.b, int64(s.Peer().GID), 10)
	w.who(s)
}

// who ends a line with the fields that identify the session. They are the same in all its lines.
func (w *lineWriter) who(s *engine.Session) {
	if p := s.AuditTail.Load(); p != nil {
		w.b = append(w.b, *p...)
		return
	}
	own := lineWriter{}
	name, greeted := s.Client()
	if s.Detached() {
		own.text(`,"uid":`)
		own.b = strconv.AppendInt(own.b, int64(s.Peer().UID), 10)
	} else {
		own.text(`,"session":`)
		own.number(s.ID())
		own.text(`,"pid":`)
		own.b = strconv.AppendInt(own.b, int64(s.Peer().PID), 10)
	}
	if greeted {
		own.text(`,"client":`)
		own.quoted(name)
	}
	own.text("}\n")
	w.b = append(w.b, own.b...)
	if greeted {
		s.AuditTail.Store(&own.b)
	}
}

func (w *lineWriter) text(s string)   { w.b = append(w.b, s...) }
func (w *lineWriter) number(n uint64) { w.b = strconv.AppendUint(w.b, n, 10) }

// millis appends nanoseconds as milliseconds with up to three decimals.
func (w *lineWriter) millis(nanos int64) {
	micros := max(0, nanos) / int64(time.Microsecond)
	w.number(uint64(micros / 1000))
	if part := micros % 1000; part > 0 {
		w.b = append(w.b, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
	}
}

// quoted appends a text in quotes.
func (w *lineWriter) quoted(s string) {
	if !plain(s) {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(s) // a string never fails
		w.b = append(w.b, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
		return
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, s...)
	w.b = append(w.b, '"')
}

// plain reports whether JSON needs no escapes for a text.
func plain(s string) bool {
	for i := range len(s) {
		if !asIs[s[i]] {
			return beyondASCII(s)
		}
	}
	return true
}

// asIs has the bytes of ASCII that need no escape.
var asIs = func() (of [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		of[c] = c != '"' && c != '\\'
	}
	return of
}()

// beyondASCII is plain for any text.
func beyondASCII(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < utf8.RuneSelf && !asIs[c] {
			return false
		}
	}
	return utf8.ValidString(s)
}

// lineTime writes the beginning of lines, with their time. Most lines have the same second as the
// line before.
type lineTime struct {
	second int64
	b      []byte
	at     int // of the fraction in b
}

// of returns the beginning of a line with a time in the form of RFC 3339, to the microsecond. The
// result is valid until the next call.
func (a *lineTime) of(t time.Time) []byte {
	if s := t.Unix(); s != a.second || a.at == 0 {
		a.second = s
		a.b = t.AppendFormat(append(a.b[:0], `{"level":"info","ts":"`...), "2006-01-02T15:04:05.")
		a.at = len(a.b)
		a.b = t.AppendFormat(append(a.b, "000000"...), "Z07:00")
	}
	n := t.Nanosecond() / 1000
	for i := a.at + 4; i >= a.at; i -= 2 {
		pair := n % 100 * 2
		a.b[i], a.b[i+1] = pairs[pair], pairs[pair+1]
		n /= 100
	}
	return a.b
}

// pairs has the numbers below 100, each with two digits.
var pairs = func() (all [200]byte) {
	for n := range 100 {
		all[2*n], all[2*n+1] = byte('0'+n/10), byte('0'+n%10)
	}
	return all
}()
