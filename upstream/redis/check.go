package redis

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// oldest is the oldest supported server version. From it on, scripts replicate their effects
// instead of their text.
const oldest = 6

// oldestCluster is the oldest version whose clusters have sharded channels.
const oldestCluster = 7

// serverInfo is what the check of a connection found out.
type serverInfo struct {
	version string
	mode    string // "standalone", "cluster", "sentinel"; "" if unknown
	role    string // "" if unknown
	policy  string // "" if unknown
	aof     string // "1" if the server has an append-only file; "" if unknown
	online  int    // the number of connected replicas; -1 if unknown
}

// checkConn checks the server behind a new connection, and loads the scripts there. It runs for
// every connection before anything else is sent, because a name may lead to another server than
// before. If it fails, the ops are refused and nothing was done.
func (s *Store) checkConn(ctx context.Context, cn *goredis.Conn, n *node) error {
	if err := s.inspectConn(ctx, cn, n); err != nil {
		return fmt.Errorf("check: %w", err) // go-redis unwraps the error once
	}
	return nil
}

func (s *Store) inspectConn(ctx context.Context, cn *goredis.Conn, n *node) error {
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
	v := serverInfo{
		version: infoField(info.Val(), "redis_version"),
		mode:    infoField(info.Val(), "redis_mode"),
		role:    infoField(repl.Val(), "role"),
		policy:  cmp.Or(infoField(mem.Val(), "maxmemory_policy"), policy.Val()["maxmemory-policy"]),
		aof:     infoField(disk.Val(), "aof_enabled"),
		online:  -1,
	}
	if r, ok := role.Val().([]any); ok && v.role == "" && len(r) > 0 {
		v.role = fmt.Sprint(r[0])
	}
	if v.role == "master" && repl.Err() == nil {
		v.online = strings.Count(repl.Val(), ",state=online,")
	}
	if err := s.checkServer(v); err != nil {
		return err
	}
	if err := s.uptime.check(info.Val()); err != nil {
		return err
	}
	n.online.Store(int32(v.online))
	for _, l := range loads {
		if err := l.Err(); err != nil {
			return fmt.Errorf("load scripts: %w", err)
		}
	}
	s.logServer(n, v)
	// TIME is a request of its own, so that little time passes between the server's reading of its
	// clock and the receipt.
	if now, err := cn.Time(ctx).Result(); err == nil {
		s.fences.SawClock(now.UnixMicro())
	} else if !isReply(err) {
		return err
	}
	return nil
}

// checkServer returns an error if the server must not be used.
func (s *Store) checkServer(v serverInfo) error {
	if before(v.version, oldest, 0) {
		return fmt.Errorf("%w: its version is %s, at least %d.0 is needed",
			ErrServer, v.version, oldest)
	}
	if err := s.checkKind(v); err != nil {
		return err
	}
	if v.policy != "" && v.policy != "noeviction" && !s.cfg.AllowEviction {
		return fmt.Errorf("%w: its maxmemory-policy is %s, so it may throw locks away: set "+
			"maxmemory-policy noeviction there, or accept that with allow_eviction=true in the "+
			"store URL", ErrServer, v.policy)
	}
	if s.cfg.WaitAOF == (AOF{}) {
		return nil
	}
	if before(v.version, 7, 2) {
		return fmt.Errorf("%w: its version is %s, and wait_aof in the store URL needs at least "+
			"7.2 (WAITAOF); wait_replicas works with this one",
			ErrServer, v.version)
	}
	if s.cfg.WaitAOF.Local && v.aof == "0" {
		return fmt.Errorf("%w: wait_aof=%v in the store URL needs appendonly yes there",
			ErrServer, s.cfg.WaitAOF)
	}
	return nil
}

func (s *Store) checkKind(v serverInfo) error {
	switch {
	case v.mode == "sentinel":
		return fmt.Errorf("%w: it is a sentinel; the store URL for that is "+
			"redis+sentinel://…/MASTERNAME", ErrServer)
	case s.cfg.Kind == Cluster && v.mode == "standalone":
		return fmt.Errorf("%w: it is of no cluster; the store URL for a single server is redis://",
			ErrServer)
	case s.cfg.Kind == Cluster && before(v.version, oldestCluster, 0):
		return fmt.Errorf("%w: its version is %s, at least %d.0 is needed in a cluster",
			ErrServer, v.version, oldestCluster)
	case s.cfg.Kind == Cluster:
		return nil // a replica redirects ops to its master
	case v.mode == "cluster":
		return fmt.Errorf("%w: it is of a cluster; the store URL for that is redis+cluster://",
			ErrServer)
	case v.role == "" || v.role == "master":
		return nil
	case s.cfg.Kind == Sentinel:
		return fmt.Errorf("%w: it is a replica and not the master that the sentinels say it is; "+
			"perhaps a fail-over is under way", ErrServer)
	}
	return fmt.Errorf("%w: it is a replica; the store URL has to name the master", ErrServer)
}

// before reports whether a version is known to be earlier than major.minor.
func before(version string, major, minor int) bool {
	v, ok := driverkit.ParseVersion(version)
	return ok && v.Before(driverkit.Version{major, minor})
}

// logServer logs the properties of a server if they have changed.
func (s *Store) logServer(n *node, v serverInfo) {
	s.logged.Lock()
	defer s.logged.Unlock()
	addr := n.String()
	if was, ok := s.logged.servers[addr]; ok && was == v {
		return
	}
	s.logged.servers[addr] = v
	log := s.log.With(zap.String("version", v.version), zap.String("addr", addr),
		zap.String("role", v.role))
	log.Info("connected to redis")
	if v.policy == "" {
		log.Warn("cannot find out the server's maxmemory-policy (ACL): with any other than " +
			"noeviction it may throw locks away")
	} else if v.policy != "noeviction" {
		log.Warn("the server may throw locks away", zap.String("maxmemory-policy", v.policy))
	}
	if v.role == "" {
		log.Warn("cannot find out whether the server is a master (ACL)")
	}
	if v.role == "master" && v.online >= 0 && v.online < s.replicas() {
		log.Warn("the server has fewer replicas than grants wait for: nothing can be granted or "+
			"renewed there",
			zap.Int("replicas", v.online), zap.Int("asked", s.replicas()))
	}
}

// replicas returns how many replicas must have each grant and renewal.
func (s *Store) replicas() int { return max(s.cfg.WaitReplicas, s.cfg.WaitAOF.Replicas) }

func infoField(info, name string) string {
	for line := range strings.SplitSeq(info, "\n") {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimRight(v, "\r")
		}
	}
	return ""
}
