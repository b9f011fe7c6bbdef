package main

import (
	"math"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// flatJSON writes the lines that the audit has so many of, in the same bytes as zap's own encoder
// and in half its time: flat fields, and texts that need no escapes. All else it leaves to
// that one.
type flatJSON struct {
	zapcore.Encoder
	second *atomic.Pointer[second]
}

func newFlatJSON(e zapcore.Encoder) flatJSON { return flatJSON{e, new(atomic.Pointer[second])} }

// second is how times within a second begin and end: nearly all lines share it with those before.
type second struct {
	unix        int64
	place       *time.Location
	begin, zone string
}

var linePool = buffer.NewPool()

// Clone is for loggers with fields of their own, which are zap's.
func (f flatJSON) Clone() zapcore.Encoder { return f.Encoder.Clone() }

// EncodeEntry encodes one line.
func (f flatJSON) EncodeEntry(e zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	if e.LoggerName != "" || e.Stack != "" || e.Time.IsZero() || !plain(e.Message) {
		return f.Encoder.EncodeEntry(e, fields)
	}
	b := linePool.Get()
	b.AppendString(`{"level":"`)
	b.AppendString(e.Level.String())
	b.AppendString(`","ts":"`)
	f.appendTime(b, e.Time)
	b.AppendString(`","msg":"`)
	b.AppendString(e.Message)
	b.AppendByte('"')
	for i := range fields {
		if !appendFlat(b, &fields[i]) {
			b.Free()
			return f.Encoder.EncodeEntry(e, fields)
		}
	}
	b.AppendString("}\n")
	return b, nil
}

// appendTime writes t as time.RFC3339Nano has it.
func (f flatJSON) appendTime(b *buffer.Buffer, t time.Time) {
	s := f.second.Load()
	if s == nil || s.unix != t.Unix() || s.place != t.Location() {
		s = &second{t.Unix(), t.Location(), t.Format("2006-01-02T15:04:05"), t.Format("Z07:00")}
		f.second.Store(s)
	}
	b.AppendString(s.begin)
	if n := t.Nanosecond(); n > 0 {
		var digits [10]byte
		last := 9
		for i := 9; i > 0; i-- {
			if digits[i] = byte('0' + n%10); digits[i] == '0' && last == i {
				last--
			}
			n /= 10
		}
		digits[0] = '.'
		_, _ = b.Write(digits[:last+1])
	}
	b.AppendString(s.zone)
}

// appendFlat writes one field, whose key is a word of ours; false when it is none of those that it can.
func appendFlat(b *buffer.Buffer, f *zapcore.Field) bool {
	b.AppendString(`,"`)
	b.AppendString(f.Key)
	b.AppendString(`":`)
	switch f.Type {
	case zapcore.StringType:
		b.AppendByte('"')
		b.AppendString(f.String)
		b.AppendByte('"')
		return plain(f.String)
	case zapcore.Uint64Type:
		b.AppendUint(uint64(f.Integer))
	case zapcore.Int64Type:
		b.AppendInt(f.Integer)
	case zapcore.BoolType:
		b.AppendBool(f.Integer == 1)
	case zapcore.Float64Type:
		v := math.Float64frombits(uint64(f.Integer))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
		b.AppendFloat(v, 64)
	default:
		return false
	}
	return true
}

// plain says that a text stands in JSON as it is.
func plain(s string) bool {
	ascii := true
	for i := range len(s) {
		c := s[i]
		if c < 0x20 || c == '"' || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.ValidString(s)
}
