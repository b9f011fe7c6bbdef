package harness

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a private redis-server that keeps nothing on disk.
type Redis struct {
	*Process
	Addr   string // "127.0.0.1:port"
	client *redis.Client
}

// RedisInfo has the counters of a Redis.
type RedisInfo struct {
	CPU      time.Duration
	Calls    float64 // commands, including those inside scripts, except INFO
	Scripts  float64 // the part of Calls that are EVALSHA and EVAL
	Renewals float64 // the part of Calls that are PEXPIRE
}

// StartRedis starts a redis-server on a free port of the loopback interface, with dir as its
// directory. args are appended to the arguments that keep the server private.
func StartRedis(dir string, args ...string) (*Redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	p, err := StartProcess(path, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", dir}, args...)...)
	if err != nil {
		return nil, err
	}
	r := &Redis{Process: p, Addr: addr, client: redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1,
		MaxRetries: -1})}
	err = p.await(func() error { return r.client.Ping(context.Background()).Err() })
	if err != nil {
		r.client.Close()
		return nil, err
	}
	return r, nil
}

// Flush deletes all keys.
func (r *Redis) Flush() error { return r.client.FlushAll(context.Background()).Err() }

// Version returns the server's version.
func (r *Redis) Version() string {
	s, err := r.client.Info(context.Background(), "server").Result()
	if err != nil {
		return ""
	}
	return infoFields(s)["redis_version"]
}

// Info reads the counters.
func (r *Redis) Info() (in RedisInfo, err error) {
	s, err := r.client.Info(context.Background(), "cpu", "commandstats").Result()
	if err != nil {
		return in, fmt.Errorf("read Redis counters: %w", err)
	}
	for k, v := range infoFields(s) {
		switch {
		case k == "used_cpu_sys", k == "used_cpu_user":
			f, _ := strconv.ParseFloat(v, 64)
			in.CPU += time.Duration(f * float64(time.Second))
		case strings.HasPrefix(k, "cmdstat_") && k != "cmdstat_info":
			v, _, _ = strings.Cut(strings.TrimPrefix(v, "calls="), ",")
			f, _ := strconv.ParseFloat(v, 64)
			in.Calls += f
			switch k {
			case "cmdstat_pexpire":
				in.Renewals = f
			case "cmdstat_evalsha", "cmdstat_eval":
				in.Scripts += f
			}
		}
	}
	return in, nil
}

// Clients returns the number of the server's connections, without the one of r.
func (r *Redis) Clients() int {
	list, err := r.client.ClientList(context.Background()).Result()
	if err != nil {
		return 0
	}
	return max(0, strings.Count(list, "\n")-1)
}

func infoFields(s string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[k] = v
		}
	}
	return m
}

// Stop ends the server, and the connection to it.
func (r *Redis) Stop() error {
	r.client.Close()
	return r.Process.Stop()
}
