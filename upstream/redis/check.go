package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

// oldest is the oldest server version that has what the scripts use: their
// effects are replicated, not their text.
const oldest = 6

// server is what a connection's check found out.
type server struct {
	version string
	mode    string // "standalone", "cluster", "sentinel"; "" when not known
	role    string // "" when not known
	policy  string // "" when not known
}

// check looks at the server behind a new connection, and loads the scripts
// there. It runs for every connection, before anything else is sent: a name may
// lead to another server than last time. What fails here is refused, and nothing
// was done.
func (s *Store) check(ctx context.Context, cn *goredis.Conn) error {
	if err := s.look(ctx, cn); err != nil {
		return fmt.Errorf("check: %w", err) // go-redis takes one wrapping off
	}
	return nil
}

func (s *Store) look(ctx context.Context, cn *goredis.Conn) error {
	p := cn.Pipeline()
	info := p.Info(ctx, "server")
	repl := p.Info(ctx, "replication")
	mem := p.Info(ctx, "memory")
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
		role: infoField(repl.Val(), "role"), policy: infoField(mem.Val(), "maxmemory_policy")}
	if r, ok := role.Val().([]any); ok && v.role == "" && len(r) > 0 {
		v.role = fmt.Sprint(r[0])
	}
	if v.policy == "" {
		v.policy = policy.Val()["maxmemory-policy"]
	}
	if err := s.judge(v); err != nil {
		return err
	}
	for _, l := range loads {
		if err := l.Err(); err != nil {
			return advice(fmt.Errorf("load scripts: %w", err))
		}
	}
	s.report(v)
	return nil
}

// judge says whether a server may be used.
func (s *Store) judge(v server) error {
	major, _, _ := strings.Cut(v.version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < oldest {
		return fmt.Errorf("%w: its version is %s, at least %d.0 is needed", ErrServer, v.version, oldest)
	}
	if v.mode != "" && v.mode != "standalone" {
		return fmt.Errorf("%w: it is of a %s, and this store is for a standalone server", ErrServer, v.mode)
	}
	if v.role != "" && v.role != "master" {
		return fmt.Errorf("%w: it is a replica; the store URL has to name the master", ErrServer)
	}
	if v.policy != "" && v.policy != "noeviction" && !s.cfg.AllowEviction {
		return fmt.Errorf("%w: its maxmemory-policy is %s, so it may throw locks away: set maxmemory-policy noeviction there, "+
			"or accept that with allow_eviction=true in the store URL", ErrServer, v.policy)
	}
	return nil
}

// report logs what is known of a server when it is news.
func (s *Store) report(v server) {
	s.seen.Lock()
	defer s.seen.Unlock()
	if s.seen.server != nil && *s.seen.server == v {
		return
	}
	s.seen.server = &v
	log := s.log.With(zap.String("version", v.version), zap.String("addr", s.cfg.Addr))
	log.Info("connected to redis")
	if v.policy == "" {
		log.Warn("cannot find out the server's maxmemory-policy (ACL): with any other than noeviction it may throw locks away")
	} else if v.policy != "noeviction" {
		log.Warn("the server may throw locks away", zap.String("maxmemory-policy", v.policy))
	}
	if v.role == "" {
		log.Warn("cannot find out whether the server is a master (ACL)")
	}
}

func infoField(info, name string) string {
	for line := range strings.SplitSeq(info, "\n") {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimRight(v, "\r")
		}
	}
	return ""
}

// Ping asks for an answer on a connection that has passed its checks.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.reach(ctx); err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrDown, err)
	}
	return nil
}

// reach makes one connection, checks included.
func (s *Store) reach(ctx context.Context) error {
	err := s.client.Ping(ctx).Err()
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrServer) {
		return fmt.Errorf("redis at %s: %w", s.cfg.Addr, err)
	}
	return advice(fmt.Errorf("redis at %s, as the store URL says: %w", s.cfg.Addr, err))
}
