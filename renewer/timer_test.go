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
