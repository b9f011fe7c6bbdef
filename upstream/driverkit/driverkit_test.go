package driverkit

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

func TestErrorsNameTheStoreAndWrapTheCommonOnes(t *testing.T) {
	config, server, nothingSent, noAnswer, refused := Errors("redis")
	for _, e := range []struct {
		own, common error
		text        string
	}{
		{config, ErrConfig, "redis store URL"},
		{server, ErrServer, "redis server cannot be used"},
		{nothingSent, ErrNothingSent, "no connection to redis"},
		{noAnswer, ErrNoAnswer, "no answer from redis"},
		{refused, ErrRefused, "redis refused"},
	} {
		if !errors.Is(e.own, e.common) || e.own.Error() != e.text {
			t.Errorf("%q: want %q, which is %v", e.own, e.text, e.common)
		}
	}
	if _, other, _, _, _ := Errors("etcd"); errors.Is(other, server) {
		t.Error("the errors of two drivers are the same")
	}
}

func TestDownMarksAnErrorOnce(t *testing.T) {
	cause := errors.New("cause")
	err := Down(cause)
	if !errors.Is(err, upstream.ErrDown) || !errors.Is(err, cause) {
		t.Error(err)
	}
	if Down(err) != err {
		t.Errorf("marked twice: %v", Down(err))
	}
}

func TestOnlyAnUnknownOutcomeIsUnknown(t *testing.T) {
	for o, want := range map[Outcome]cache.Status{NothingSent: cache.Refused, Refused: cache.Refused,
		Unknown: cache.Unknown} {
		if got := o.Status(); got != want {
			t.Errorf("outcome %d: status %v, want %v", o, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{
		"7.2":                       {7, 2, 0},
		"8.0.33":                    {8, 0, 33},
		"10.6.12-MariaDB-1:10.6":    {10, 6, 12},
		"3.6.0-alpha.0":             {3, 6, 0},
		"8.0.mysql_aurora.3.04.0":   {8, 0, 0},
		"5.7.44.1":                  {5, 7, 44},
		"255.255.255":               {255, 255, 255},
		"8.0.11-TiDB-v7.5.0-serial": {8, 0, 11},
	} {
		if got, ok := ParseVersion(text); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "7", "unknown", "v7.2", "7.x", ".1", "1."} {
		if v, ok := ParseVersion(text); ok {
			t.Errorf("%q: %v", text, v)
		}
	}
	order := []Version{{3, 4, 29}, {3, 5}, {3, 5, 13}, {3, 10, 1}, {10, 0, 0}}
	for i, a := range order {
		for j, b := range order {
			if a.Before(b) != (i < j) {
				t.Errorf("%v before %v: %v", a, b, a.Before(b))
			}
		}
	}
}

func TestCheckOp(t *testing.T) {
	good := []upstream.Op{
		{Kind: cache.OpTry, Key: "k"},
		{Kind: cache.OpPeek, Key: "k", Mode: cache.Permit},
		{Kind: cache.OpJoin, Key: "k", Mode: cache.Permit, Limit: 1},
		{Kind: cache.OpDowngrade, Key: "k"},
	}
	bad := []upstream.Op{
		{Kind: cache.OpPeek + 1, Key: "k"},
		{Kind: cache.OpTry, Key: "k", Mode: cache.Permit},
		{Kind: cache.OpDowngrade, Key: "k", Mode: cache.Permit, Limit: 1},
	}
	for i := range good {
		if err := CheckOp(&good[i]); err != nil {
			t.Errorf("%+v: %v", good[i], err)
		}
	}
	for i := range bad {
		if CheckOp(&bad[i]) == nil {
			t.Errorf("%+v is accepted", bad[i])
		}
	}
	if CheckFloor(&upstream.Op{Floor: cache.MaxBase - upstream.MaxBatch}) != nil {
		t.Error("the largest floor is refused")
	}
	if CheckFloor(&upstream.Op{Floor: cache.MaxBase}) == nil {
		t.Error("a floor that leaves no base is accepted")
	}
}

func TestAFullStreamOfHintsDropsThem(t *testing.T) {
	h := NewHints(2)
	for _, key := range []string{"a", "b", "c"} {
		h.Send(upstream.Hint{Key: key})
	}
	close(h)
	var keys []string
	for x := range h {
		keys = append(keys, x.Key)
	}
	if got := strings.Join(keys, ","); got != "a,b" {
		t.Error(got)
	}
}

func TestTheStreamOfSessionsHasTheNewest(t *testing.T) {
	s := NewSessions()
	for no := range uint64(3) {
		s.Send(upstream.Session{No: no + 1})
	}
	if got := <-s; got.No != 3 {
		t.Error(got)
	}
	select {
	case x := <-s:
		t.Error(x)
	default:
	}
}

func TestBackoffDoublesUpToItsMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Min: 100 * time.Millisecond, Max: 400 * time.Millisecond}
		wait := func(want time.Duration) {
			t.Helper()
			start := time.Now()
			if !b.Wait(t.Context()) {
				t.Fatal("ended early")
			}
			if d := time.Since(start); d < want/2 || d >= want*3/2 {
				t.Errorf("a pause of %v, want about %v", d, want)
			}
		}
		for _, ms := range []time.Duration{100, 200, 400, 400} {
			wait(ms * time.Millisecond)
		}
		b.Reset()
		wait(100 * time.Millisecond)
	})
}

func TestAPauseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if Sleep(ctx, time.Hour) || time.Since(start) != time.Second {
			t.Error(time.Since(start))
		}
	})
}

func TestDialExplainsAServerWithoutTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, greeting := range []string{"220 this is no TLS\r\n", ""} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, greeting)
			_ = c.Close()
		}
	}()
	conf := &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12}
	for _, want := range []string{"TLS", "(is it a TLS port?)"} {
		_, err = Dial(t.Context(), new(net.Dialer), "tcp", l.Addr().String(), conf)
		if err == nil || !strings.Contains(err.Error(), "TLS handshake with "+l.Addr().String()) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	<-done
}

func TestTLSAdvice(t *testing.T) {
	for text, want := range map[string]string{
		"x509: certificate signed by unknown authority": "ca=",
		"x509: certificate is valid for a, not b":       "server_name=",
		"remote error: tls: certificate required":       "cert=",
		"x509: certificate has expired or is not yet":   "clock",
		"connection refused":                            "",
	} {
		got := TLSAdvice(errors.New(text))
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestPurgePausesLessTheLongerItsWalk(t *testing.T) {
	young := Purged{Read: PurgeSlice, Deleted: PurgeSlice / 2, Took: time.Millisecond}
	for hours, want := range []time.Duration{slicePause, slicePause / 2, slicePause / 4} {
		if d := young.Pause(time.Duration(hours) * time.Hour); d != want {
			t.Errorf("after %d hours it pauses for %v, not %v", hours, d, want)
		}
	}
	if d := young.Pause(1000 * time.Hour); d != young.Took {
		t.Errorf("at last it pauses for %v", d)
	}
	old := Purged{Read: PurgeSlice, Deleted: PurgeSlice/2 + 1, Took: time.Millisecond}
	if d := old.Pause(0); d != old.Took {
		t.Errorf("with mostly old rows it pauses for %v", d)
	}
}
