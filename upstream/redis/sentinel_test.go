package redis_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestBehindSentinel(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisSentinel(t, "")
	t.Run("what is wrong in the URL is said", func(t *testing.T) { wrongSentinels(t, c) })
	t.Run("leases go on after an orderly fail-over", func(t *testing.T) {
		p, q := &peer{T: t, Store: openStore(t, c.URL())}, &peer{T: t, Store: openStore(t, c.URL())}
		a, base := p.take("a", cache.Exclusive)
		b, _ := p.take("b", cache.Shared)
		old := c.Master()
		c.Failover()
		// The old master still reports that it is a master, and would still grant.
		p.eventually("nobody uses the old master any more", func() bool {
			p.do(cache.OpPeek, 0, "a", 0)
			q.do(cache.OpPeek, 0, "a", 0)
			// the connection is cut when the node is demoted.
			list, err := old.Admin().ClientList(t.Context()).Result()
			return err == nil && !strings.Contains(list, "name=locksidecar")
		})
		if old.Info("role") != "master" {
			t.Log("the old master was told at once")
		}
		for key, token := range map[string]uint64{"a": a, "b": b} {
			p.eventually("it is renewed at the new master", func() bool {
				r := p.do(cache.OpRenew, 0, key, token)
				if r.Status == cache.NotHeld {
					t.Fatal("the lease is lost")
				}
				return r.Status == cache.Done
			})
		}
		w := q.token()
		q.eventually("the other host is there too", func() bool {
			return q.do(cache.OpJoin, 0, "a", w).Status == cache.Queued
		})
		p.want(p.do(cache.OpRelease, 0, "a", a), cache.Done)
		r := q.do(cache.OpJoin, 0, "a", w)
		q.want(r, cache.Granted)
		if r.Base <= base {
			t.Errorf("base %d after %d", r.Base, base)
		}
		q.eventually("hints arrive from the new master", func() bool {
			tok := p.token()
			p.want(p.do(cache.OpJoin, 0, "a", tok), cache.Queued)
			p.want(p.do(cache.OpWithdraw, 0, "a", tok), cache.Done)
			select {
			case h := <-q.Hints():
				return h == upstream.Hint{Kind: cache.HintContended, Key: "a"}
			default:
				return false
			}
		})
	})
	t.Run("a demoted master refuses whatever the sentinels say", func(t *testing.T) {
		p := &peer{T: t, Store: openStore(t, c.URL())}
		a, _ := p.take("demoted", cache.Exclusive)
		master := c.Master()
		for _, s := range c.Sentinels {
			s.Pause()
			defer s.Resume()
		}
		master.Do("REPLICAOF", "127.0.0.1", "1")
		for range 3 {
			p.want(p.do(cache.OpRenew, 0, "demoted", a), cache.Refused)
			p.want(p.do(cache.OpTry, 0, "new", p.token()), cache.Refused)
		}
		master.Do("REPLICAOF", "NO", "ONE")
		for _, s := range c.Sentinels {
			s.Resume()
		}
		p.eventually("it is renewed again", func() bool {
			return p.do(cache.OpRenew, 0, "demoted", a).Status == cache.Done
		})
	})
	t.Run("one sentinel is enough, and a silent one no trouble", func(t *testing.T) {
		c.Sentinels[0].Kill()
		c.Sentinels[1].Pause()
		defer c.Sentinels[1].Resume()
		p := &peer{T: t, Store: openStore(t, c.URL()+"?timeout=4s")}
		p.take("one", cache.Exclusive)
	})
	t.Run("without any all is refused, and what is open goes on", func(t *testing.T) {
		p := &peer{T: t, Store: openStore(t, c.URL()+"?timeout=4s")}
		a, _ := p.take("none", cache.Exclusive)
		for _, s := range c.Sentinels {
			s.Kill()
		}
		p.want(p.do(cache.OpRenew, 0, "none", a), cache.Done)
		if _, err := openURL(t, c.URL()); err == nil ||
			!strings.Contains(err.Error(), "sentinel at "+c.Sentinels[2].Addr()) {
			t.Errorf("opening it: %v", err)
		}
	})
}

func wrongSentinels(t *testing.T, c *testserver.RedisSentinel) {
	hosts, _, _ := strings.Cut(strings.TrimPrefix(c.URL(), "redis+sentinel://"), "/")
	for url, says := range map[string][]string{
		"redis+sentinel://" + hosts + "/other":                           {`no master "other"`, `"main"`},
		"redis+sentinel://" + c.Nodes[0].Addr() + "/main":                {"no sentinel"},
		"redis://" + c.Sentinels[0].Addr():                               {"redis+sentinel://"},
		"redis+cluster://" + c.Sentinels[0].Addr():                       {"redis+sentinel://"},
		"redis+sentinel://" + hosts + "/main?sentinel_password_file=/no": {"/no"},
	} {
		_, err := openURL(t, url)
		for _, s := range says {
			if err == nil || !strings.Contains(err.Error(), s) || strings.Contains(err.Error(), "geheim") {
				t.Errorf("%s: %v does not say %s", url, err, s)
			}
		}
	}
	if _, err := openURL(t, "redis+sentinel://"+hosts+"/other"); !errors.Is(err, redis.ErrServer) {
		t.Errorf("a wrong name is %v", err)
	}
}

func TestSentinelsHaveAPasswordOfTheirOwn(t *testing.T) {
	master := testserver.StartRedis(t)
	sentinel := testserver.StartRedisConf(t, fmt.Sprintf("sentinel monitor main 127.0.0.1 %d 1\n",
		master.Port()), "--sentinel")
	sentinel.Do("ACL", "SETUSER", "asker", "on", ">geheim", "~*", "&*", "+@all")
	sentinel.Do("ACL", "SETUSER", "default", "resetpass", ">falsch")
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := "redis+sentinel://" + sentinel.Addr() + "/main"
	p, err := openURL(t, url+"?sentinel_user=asker&sentinel_password_file="+file)
	if err != nil {
		t.Fatal(err)
	}
	p.take("k", cache.Exclusive)
	for _, query := range []string{"", "?sentinel_password_file=" + file} {
		_, err := openURL(t, url+query)
		if err == nil || !strings.Contains(err.Error(), "sentinel_password_file") ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", query, err)
		}
	}
}

func TestSentinelAndClusterOverTLS(t *testing.T) {
	t.Parallel()
	authority := testserver.NewAuthority(t, t.TempDir())
	authority.Issue("server")
	authority.Issue("client")
	file := authority.File
	tls := func(port string) []string {
		return []string{"--tls-port", port, "--tls-ca-cert-file", file("ca.crt"), "--tls-cert-file",
			file("server.crt"),
			"--tls-key-file", file("server.key"), "--tls-replication", "yes"}
	}
	query := "?ca=" + file("ca.crt") + "&cert=" + file("client.crt") + "&key=" + file("client.key")
	masterPort, sentinelPort, nodePort := unusedPort(t), unusedPort(t), unusedPort(t)
	testserver.StartRedis(t, tls(masterPort)...)
	sentinel := testserver.StartRedisConf(t, "sentinel monitor main 127.0.0.1 "+masterPort+" 1\n",
		append(tls(sentinelPort), "--sentinel")...)
	node := testserver.StartRedis(t, append(tls(nodePort), "--tls-cluster", "yes", "--cluster-enabled",
		"yes", "--cluster-port", unusedPort(t))...)
	node.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	for _, url := range []string{
		"rediss+sentinel://127.0.0.1:" + sentinelPort + "/main" + query,
		"rediss+sentinel://" + sentinel.Addr() + "/main" + query + "&sentinel_tls=false",
		"rediss+cluster://127.0.0.1:" + nodePort + query,
	} {
		p := lazyPeer(t, url)
		var last cache.Result
		for end := time.Now().Add(bound); last.Status != cache.Granted; time.Sleep(20 * time.Millisecond) {
			if last = p.do(cache.OpTry, 0, url, p.token()); time.Now().After(end) {
				t.Fatalf("%s: it is %v (%v)", url, last.Status, last.Err)
			}
		}
		if _, err := openURL(t, strings.Replace(url, "ca="+file("ca.crt"), "server_name=x",
			1)); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("with an authority that it does not know: %v", err)
		}
	}
}
