package redis

import (
	"errors"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// WAITAOF exists since Redis 7.2. If the tests' server is older, this is the only test of it.
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
		l := &pipeline{grants: true}
		s.addWait(l)
		if l.aofReply == nil || l.waitReply != nil || len(l.cmds) != 1 {
			t.Fatal("WAITAOF is not asked for, or more is")
		}
		l.aofReply.SetVal(c.answer)
		l.aofReply.SetErr(c.err)
		s.readWait(l)
		if (l.unconfirmed == nil) != c.enough || l.unconfirmed != nil &&
			!errors.Is(l.unconfirmed, ErrAcks) {
			t.Errorf("%v of %v: %v", c.answer, c.aof, l.unconfirmed)
		}
	}
	s := &Store{cfg: Config{WaitReplicas: 2}}
	l := &pipeline{}
	s.addWait(l)
	if l.cmds != nil {
		t.Error("what gives nothing waits")
	}
	l.waitReply = goredis.NewIntCmd(t.Context())
	l.waitReply.SetVal(1)
	if s.readWait(l); l.unconfirmed == nil {
		t.Error("one of two is enough")
	}
}

func TestServersAreJudgedByTheSettings(t *testing.T) {
	fine := serverInfo{version: "7.2.0", mode: "standalone", role: "master",
		policy: "noeviction", aof: "1"}
	for _, c := range []struct {
		cfg    Config
		change func(*serverInfo)
		says   string
	}{
		{Config{}, func(*serverInfo) {}, ""},
		{Config{WaitAOF: AOF{Local: true}}, func(*serverInfo) {}, ""},
		{Config{WaitAOF: AOF{Local: true}}, func(v *serverInfo) { v.aof = "0" }, "appendonly"},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *serverInfo) { v.aof = "0" }, ""},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *serverInfo) { v.version = "7.1.9" }, "7.2"},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *serverInfo) { v.version = "8.0.0" }, ""},
		{Config{WaitAOF: AOF{Replicas: 1}}, func(v *serverInfo) { v.version = "" }, ""},
		{Config{}, func(v *serverInfo) { v.version = "5.0.14" }, "6.0"},
		{Config{Kind: Cluster}, func(v *serverInfo) { v.mode, v.version = "cluster", "6.2.1" }, "7.0"},
		{Config{Kind: Cluster}, func(v *serverInfo) { v.mode, v.role = "cluster", "slave" }, ""},
		{Config{Kind: Sentinel}, func(v *serverInfo) { v.role = "slave" }, "fail-over"},
	} {
		v := fine
		c.change(&v)
		err := (&Store{cfg: c.cfg}).checkServer(v)
		if (err == nil) != (c.says == "") || err != nil &&
			(!errors.Is(err, ErrServer) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v with %v: %v", v, c.cfg.WaitAOF, err)
		}
	}
}
