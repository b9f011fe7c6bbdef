package main

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
)

// drivers complete a plan by its URL. They connect to nothing.
var drivers = map[config.Kind]func(*plan, *config.Config) error{
	config.KindRedis: planRedis,
}

// reserved is where the Redis stores keep what belongs to locks.
const reserved = "locksidecar:"

func planRedis(p *plan, _ *config.Config) error {
	cfg, err := redis.Parse(p.url)
	if err != nil {
		return err
	}
	p.where, p.safety, p.scope = cfg.String(), "best-effort", "all hosts that use this Redis and prefix"
	p.check = func(key string) error {
		if name := cfg.Prefix + key; strings.HasPrefix(name, reserved) {
			return fmt.Errorf("it would be %q in Redis, and names there that begin with %q are reserved", name, reserved)
		}
		return nil
	}
	p.there = func(key string) string {
		return cfg.Prefix + key + " (a plain SET … NX PX on it excludes us, and we it)"
	}
	p.open = func(ctx context.Context, log *zap.Logger, lazy bool) (upstream.Store, error) {
		if lazy {
			return redis.OpenLazy(cfg, redis.WithLogger(log))
		}
		return redis.Open(ctx, cfg, redis.WithLogger(log))
	}
	return nil
}
