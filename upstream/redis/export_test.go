package redis

import (
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// FenceName returns the name of the fence counter of a cluster's slot.
func FenceName(slot int) string { return clusterNames()[slot].fence }

// BeforeRedis62 makes the scripts use names that no server knows instead of features newer than
// Redis 6.0, until undo is called. No store may be open.
func BeforeRedis62() (undo func()) {
	makeScripts()
	was := scripts
	for i := range scripts {
		s := &scripts[i]
		s.source = strings.NewReplacer("'GT'", "'NO'", "'GET'", "'NO'", "'zrandmember'",
			"'no'").Replace(s.source)
		s.sha = goredis.NewScript(s.source).Hash()
	}
	return func() { scripts = was }
}
