package main

import "testing"

func TestASuccessorIsToldWhatWasSeenOfEachPlace(t *testing.T) {
	var was, is places
	redis, zk := was.at("redis"), was.at("zookeeper")
	redis.fences.SawBase(1 << 40)
	zk.high.Store(77)
	if err := is.arrive(was.leave()); err != nil {
		t.Fatal(err)
	}
	if got, want := is.at("redis").fences.Floor(), redis.fences.Floor(); got != want || got != 1<<40 {
		t.Errorf("the floor is %d, and was %d", got, want)
	}
	if got := is.at("zookeeper").high.Load(); got != 77 {
		t.Errorf("the highest transaction is %d", got)
	}
	is.at("zookeeper").high.Store(78) // a newer value stays
	if err := is.arrive(was.leave()); err != nil || is.at("zookeeper").high.Load() != 78 {
		t.Errorf("%v, and the highest transaction is %d", err, is.at("zookeeper").high.Load())
	}
	for _, text := range []string{"x", `{"redis":{"Fences":"1"}}`, `{"redis":{"Fences":"-1 2"}}`} {
		if err := is.arrive([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	if err := is.arrive(nil); err != nil {
		t.Errorf("of an older version: %v", err)
	}
}
