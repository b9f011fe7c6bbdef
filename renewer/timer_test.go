package renewer

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheTimerFiresAtTheEarliestTimeAskedForAndAgainWhenToldTo(t *testing.T) {
	fired := make(chan int64)
	next := make(chan int64)
	tm, err := NewTimer(func() int64 {
		fired <- Boottime()
		return <-next
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tm.Close()
	now := Boottime()
	early := now + int64(20*time.Millisecond)
	tm.Wake(now + int64(time.Hour))
	tm.Wake(early)
	tm.Wake(now + int64(time.Minute))
	if at := <-fired; at < early {
		t.Fatalf("%v too early", time.Duration(early-at))
	}
	again := Boottime() + int64(10*time.Millisecond)
	next <- again
	if at := <-fired; at < again {
		t.Fatalf("%v too early", time.Duration(again-at))
	}
	next <- cache.Forever
	tm.Wake(1) // long past
	<-fired
	next <- cache.Forever
}

func TestTheTimerKnowsHowLateItWas(t *testing.T) {
	fired := make(chan struct{})
	tm, err := NewTimer(func() int64 {
		fired <- struct{}{}
		return cache.Forever
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tm.Close()
	const late = 300 * time.Millisecond
	tm.Wake(Boottime() - int64(late))
	<-fired
	// not 0, unless this goroutine has stood still until it was a second
	if got := tm.Worst(); got != 0 && got < late {
		t.Errorf("%v", got)
	}
	if got := tm.Worst(); got != 0 {
		t.Errorf("%v a second time", got)
	}
	tm.Wake(1) // long past: nobody is late
	<-fired
	if got := tm.Worst(); got != 0 {
		t.Errorf("%v", got)
	}
}
