package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// oldest is the oldest server version that has what the scripts use: their
// effects are replicated, not their text.
const oldest = 6

// oldestCluster is the oldest one whose clusters have sharded channels.
const oldestCluster = 7

// server is what a connection's check found out.
type server struct {
	version string
	mode    string // "standalone", "cluster", "sentinel"; "" when not known
	role    string // "" when not known
	policy  string // "" when not known
	aof     string // "1" when it appends to a file, "" when not known
	online  int    // replicas that follow, -1 when not known
}

// check looks at the server behind a new connection, and loads the scripts
// there. It runs for every connection, before anything else is sent: a name may
// lead to another server than last time. What fails here is refused, and nothing
// was done.
func (s *Store) check(ctx context.Context, cn *goredis.Conn, n *node) error {
	if err := s.look(ctx, cn, n); err != nil {
		return fmt.Errorf("check: %w", err) // go-redis takes one wrapping off
	}
	return nil
}

func (s *Store) look(ctx context.Context, cn *goredis.Conn, n *node) error {
	p := cn.Pipeline()
	info := p.Info(ctx, "server")
	repl := p.Info(ctx, "replication")
	mem := p.Info(ctx, "memory")
	disk := p.Info(ctx, "persistence")
	role := p.Do(ctx, "role")
	policy := p.ConfigGet(ctx, "maxmemory-policy")
	p.ClientSetName(ctx, "locksidecar")
	loads := make([]*goredis.StringCmd, len(scripts))
	for i := range scripts {
		loads[i] = p.ScriptLoad(ctx, scripts[i].source)
	}
	_, err := p.Exec(ctx)
	if err != nil && !isReply(err) {
		return err
	}
	v := server{version: infoField(info.Val(), "redis_version"), mode: infoField(info.Val(), "redis_mode"),
		role: infoField(repl.Val(), "role"), policy: infoField(mem.Val(), "maxmemory_policy"),
		aof: infoField(disk.Val(), "aof_enabled"), online: -1}
	if r, ok := role.Val().([]any); ok && v.role == "" && len(r) > 0 {
		v.role = fmt.Sprint(r[0])
	}
	if v.policy == "" {
		v.policy = policy.Val()["maxmemory-policy"]
	}
	if v.role == "master" && repl.Err() == nil {
		v.online = strings.Count(repl.Val(), ",state=online,")
	}
	if err := s.judge(v); err != nil {
		return err
	}
	if err := s.age.judge(info.Val()); err != nil {
		return err
	}
	n.online.Store(int32(v.online))
	for _, l := range loads {
		if err := l.Err(); err != nil {
			return fmt.Errorf("load scripts: %w", err)
		}
	}
	s.report(n, v)
	// A request of its own, so that little time passes between the server's clock reading and its receipt.
	if now, err := cn.Time(ctx).Result(); err == nil {
		s.fences.SawClock(now.UnixMicro())
	} else if !isReply(err) {
		return err
	}
	return nil
}

// judge says whether a server may be used.
func (s *Store) judge(v server) error {
	if before(v.version, oldest, 0) {
		return fmt.Errorf("%w: its version is %s, at least %d.0 is needed", ErrServer, v.version, oldest)
	}
	if err := s.judgeKind(v); err != nil {
		return err
	}
	if v.policy != "" && v.policy != "noeviction" && !s.cfg.AllowEviction {
		return fmt.Errorf("%w: its maxmemory-policy is %s, so it may throw locks away: set maxmemory-policy noeviction there, "+
			"or accept that with allow_eviction=true in the store URL", ErrServer, v.policy)
	}
	if s.cfg.WaitAOF == (AOF{}) {
		return nil
	}
	if before(v.version, 7, 2) {
		return fmt.Errorf("%w: its version is %s, and wait_aof in the store URL needs at least 7.2 (WAITAOF); wait_replicas works with this one",
			ErrServer, v.version)
	}
	if s.cfg.WaitAOF.Local && v.aof == "0" {
		return fmt.Errorf("%w: wait_aof=%v in the store URL needs appendonly yes there", ErrServer, s.cfg.WaitAOF)
	}
	return nil
}

func (s *Store) judgeKind(v server) error {
	switch {
	case v.mode == "sentinel":
		return fmt.Errorf("%w: it is a sentinel; the store URL for that is redis+sentinel://…/MASTERNAME", ErrServer)
	case s.cfg.Kind == Cluster && v.mode == "standalone":
		return fmt.Errorf("%w: it is of no cluster; the store URL for a single server is redis://", ErrServer)
	case s.cfg.Kind == Cluster && before(v.version, oldestCluster, 0):
		return fmt.Errorf("%w: its version is %s, at least %d.0 is needed in a cluster", ErrServer, v.version, oldestCluster)
	case s.cfg.Kind == Cluster:
		return nil // a replica sends us to its master
	case v.mode == "cluster":
		return fmt.Errorf("%w: it is of a cluster; the store URL for that is redis+cluster://", ErrServer)
	case v.role == "" || v.role == "master":
		return nil
	case s.cfg.Kind == Sentinel:
		return fmt.Errorf("%w: it is a replica and not the master that the sentinels say it is; perhaps a fail-over is under way", ErrServer)
	}
	return fmt.Errorf("%w: it is a replica; the store URL has to name the master", ErrServer)
}

// before says whether a version is known to be earlier than major.minor.
func before(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	a, err := strconv.Atoi(parts[0])
	if err != nil || len(parts) < 2 {
		return false
	}
	b, err := strconv.Atoi(parts[1])
	return err == nil && (a < major || a == major && b < minor)
}

// report logs what is known of a server when it is news.
func (s *Store) report(n *node, v server) {
	s.seen.Lock()
	defer s.seen.Unlock()
	addr := n.String()
	if was, ok := s.seen.servers[addr]; ok && was == v {
		return
	}
	s.seen.servers[addr] = v
	log := s.log.With(zap.String("version", v.version), zap.String("addr", addr), zap.String("role", v.role))
	log.Info("connected to redis")
	if v.policy == "" {
		log.Warn("cannot find out the server's maxmemory-policy (ACL): with any other than noeviction it may throw locks away")
	} else if v.policy != "noeviction" {
		log.Warn("the server may throw locks away", zap.String("maxmemory-policy", v.policy))
	}
	if v.role == "" {
		log.Warn("cannot find out whether the server is a master (ACL)")
	}
	if v.role == "master" && v.online >= 0 && v.online < s.replicas() {
		log.Warn("the server has fewer replicas than grants wait for: nothing can be granted or renewed there",
			zap.Int("replicas", v.online), zap.Int("asked", s.replicas()))
	}
}

// replicas is how many replicas have to have what is given.
func (s *Store) replicas() int { return max(s.cfg.WaitReplicas, s.cfg.WaitAOF.Replicas) }

func infoField(info, name string) string {
	for line := range strings.SplitSeq(info, "\n") {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimRight(v, "\r")
		}
	}
	return ""
}
