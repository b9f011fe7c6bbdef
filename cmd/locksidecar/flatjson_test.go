package main

import (
	"errors"
	"math"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

func TestLinesAreThoseOfZap(t *testing.T) {
	m := &Main{}
	slow := m.encoder(config.Log{Format: "json"})
	fast := newFlatJSON(slow)
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)
	flat := []zap.Field{zap.String("key", "order:42"), zap.String("mode", "exclusive"), zap.Uint64("owner", math.MaxUint64), zap.Int("pid", -1),
		zap.Float64("wait_ms", 0.001234), zap.Float64("hold_ms", 1e21), zap.Bool("degraded", true), zap.Bool("x", false)}
	for name, e := range map[string]zapcore.Entry{
		"flat": {Time: at, Message: "acquired"}, "zone": {Time: at.In(time.FixedZone("", -3600)), Message: "x"}, "warn": {Time: at, Level: zapcore.WarnLevel},
		"named": {Time: at, LoggerName: "n", Message: "x"}, "quotes": {Time: at, Message: `a "b"`}, "no time": {Message: "x"},
		"second": {Time: at.Truncate(time.Second)}, "nanosecond": {Time: at.Add(1)}, "digits": {Time: at.Add(34_567_890)}, "later": {Time: at.Add(time.Hour)}, "stack": {Time: at, Stack: "x"},
	} {
		for _, fields := range [][]zap.Field{
			flat, nil, {zap.String("key", `a"b`)}, {zap.String("key", "a\x7f\u0085ü日🔒 <&>\u2028")}, {zap.String("key", "a\nb\x01")}, {zap.String("key", "not \xff UTF-8")},
			{zap.Float64("x", math.NaN())}, {zap.Float64("x", math.Inf(-1))}, {zap.Float64("x", 0)},
			{zap.Duration("for", time.Second), flat[0]}, {flat[0], zap.Error(errors.New("no"))}, {zap.Strings("try", []string{"a", "b"})},
			{zap.Namespace("in"), flat[0]}, {zap.Stringer("at", at)}, {zap.Skip()},
		} {
			want, err := slow.EncodeEntry(e, fields)
			if err != nil {
				t.Fatal(err)
			}
			got, err := fast.EncodeEntry(e, fields)
			if err != nil || got.String() != want.String() {
				t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, want)
			}
		}
	}
	with := fast.Clone()
	with.AddString("of", "its own")
	b, err := with.EncodeEntry(zapcore.Entry{Time: at, Message: "x"}, flat[:1])
	if want := `{"level":"info","ts":"2026-03-04T05:06:07.089Z","msg":"x","of":"its own","key":"order:42"}` + "\n"; err != nil || b.String() != want {
		t.Errorf("%s, want %s: %v", b, want, err)
	}
}

func BenchmarkLine(b *testing.B) {
	m := &Main{}
	slow := m.encoder(config.Log{Format: "json"})
	fields := []zap.Field{zap.String("key", "order:42"), zap.String("mode", "exclusive"), zap.Uint64("owner", 7), zap.Uint64("fence", 1838429381488203776),
		zap.String("event", "acquired"), zap.Float64("wait_ms", 9.109355), zap.Uint64("session", 12), zap.Int("pid", 4711), zap.String("client", "billing/worker 3")}
	for name, enc := range map[string]zapcore.Encoder{"zap": slow, "flat": newFlatJSON(slow)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, err := enc.EncodeEntry(zapcore.Entry{Time: time.Unix(1e9, 123456789), Message: "acquired"}, fields)
				if err != nil {
					b.Fatal(err)
				}
				buf.Free()
			}
		})
	}
}
