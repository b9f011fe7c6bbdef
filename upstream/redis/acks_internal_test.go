package redis

import (
	"errors"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// WAITAOF came with Redis 7.2: where the tests' server is older, this is all there is.
func TestAcknowledgementsAreCounted(t *testing.T) {
	for _, c := range []struct {
		aof    AOF
		answer []int64
		err    error
		enough bool
	}{
		{AOF{Local: true}, []int64{1, 0}, nil, true},
		{AOF{Local: true}, []int64{0, 3}, nil, false},
		{AOF{Replicas: 2}, []int64{0, 2}, nil, true},
		{AOF{Replicas: 2}, []int64{1, 1}, nil, false},
		{AOF{Local: true, Replicas: 1}, []int64{1, 1}, nil, true},
		{AOF{Local: true, Replicas: 1}, []int64{0, 1}, nil, false},
		{AOF{Local: true}, nil, nil, false},
		{AOF{Local: true}, nil, errors.New("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."), false},
	} {
		s := &Store{cfg: Config{WaitAOF: c.aof}}
		l := &leg{gives: true}
		s.await(l)
		if l.aof == nil || l.wait != nil || len(l.cmds) != 1 {
			t.Fatal("WAITAOF is not asked for, or more is")
		}
		l.aof.SetVal(c.answer)
		l.aof.SetErr(c.err)
		s.acked(l)
		if (l.acks == nil) != c.enough || l.acks != nil && !errors.Is(l.acks, ErrAcks) {
			t.Errorf("%v of %v: %v", c.answer, c.aof, l.acks)
		}
	}
	s := &Store{cfg: Config{WaitReplicas: 2}}
	l := &leg{}
	s.await(l)
	if l.cmds != nil {
		t.Error("what gives nothing waits")
	}
	l.wait = goredis.NewIntCmd(t.Context())
	l.wait.SetVal(1)
	if s.acked(l); l.acks == nil {
		t.Error("one of two is enough")
	}
}

func TestServersAreJudgedByTheSettings(t *testing.T) {
	fine := server{version: "7.2.0", mode: "standalone", role: "master", policy: "noeviction", aof: "1"}
	for _, c := range []struct {
		cfg    Config
		change func(*server)
		says   string
	}{
		{Config{}, func(*server) {}, ""},
		{Config{WaitAOF: AOF{Local: true}}, func(*server) {}, ""},
		{Config{WaitAOF: AOF{Local: true}}, func(v *server) { v.aof = "0" }, "appendonly"},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *server) { v.aof = "0" }, ""},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *server) { v.version = "7.1.9" }, "7.2"},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *server) { v.version = "8.0.0" }, ""},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *server) { v.version = "" }, ""},
		{Config{}, func(v *server) { v.version = "5.0.14" }, "6.0"},
		{Config{Kind: Cluster}, func(v *server) { v.mode, v.version = "cluster", "6.2.1" }, "7.0"},
		{Config{Kind: Cluster}, func(v *server) { v.mode, v.role = "cluster", "slave" }, ""},
		{Config{Kind: Sentinel}, func(v *server) { v.role = "slave" }, "fail-over"},
	} {
		v := fine
		c.change(&v)
		err := (&Store{cfg: c.cfg}).judge(v)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrServer) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v with %v: %v", v, c.cfg.WaitAOF, err)
		}
	}
}
