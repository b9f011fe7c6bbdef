package redis

import (
	"embed"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Calls are sent in this order of scripts, so that those that free keys come first.
const (
	scriptRelease = iota
	scriptPermitRelease
	scriptDowngrade
	scriptRenew
	scriptPermitRenew
	scriptAcquire
	scriptShare
	scriptPermit
	scriptPeek
	scriptPermitPeek
	scriptMoving
	scriptPermitMoving
	scriptCount
)

//go:embed lua/*.lua
var luaFiles embed.FS

// lua returns the text of a file in lua/.
func lua(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // It is embedded above.
	}
	return string(text)
}

// script is a Lua script, with the keys that its calls begin with.
type script struct {
	name   string // of its file in lua/
	source string
	sha    any  // its digest, boxed once for all calls
	fence  bool // the fence is the first of its KEYS
	queued bool // the queued mark is among its first KEYS
	grants bool // it grants or extends leases
	permit bool // its other KEYS belong to semaphores, not to locks
}

var scripts = [scriptCount]script{
	scriptRelease:   {name: "release", queued: true},
	scriptDowngrade: {name: "downgrade", queued: true, grants: true},
	scriptRenew:     {name: "renew", queued: true, grants: true}, // and fence if bases are requested
	scriptAcquire:   {name: "acquire", fence: true, grants: true},
	scriptShare:     {name: "share", fence: true, grants: true},
	scriptPeek:      {name: "peek"},
	scriptMoving:    {name: "moving", grants: true},

	scriptPermit:        {name: "permit", fence: true, grants: true, permit: true},
	scriptPermitRelease: {name: "permitrelease", queued: true, permit: true},
	// as for scriptRenew
	scriptPermitRenew:  {name: "permitrenew", queued: true, grants: true, permit: true},
	scriptPermitPeek:   {name: "permitpeek", permit: true},
	scriptPermitMoving: {name: "permitmoving", grants: true, permit: true},
}

// makeScripts assembles the scripts. OpenLazy calls it, so that programs without Redis do not.
var makeScripts = sync.OnceFunc(func() {
	reserving := strings.NewReplacer("--@base\n", lua("base"), "--@reserve\n", lua("reserve"))
	parts := strings.NewReplacer("--@base\n", lua("base"), "--@fast\n", lua("fast"),
		"--@reserve\n", lua("reserve"), "--@rebase\n", reserving.Replace(lua("rebase")),
		"--@slow\n", lua("common")+lua("slow"), "--@semqueues\n", lua("semqueues"),
		"--@semaphore\n", lua("common")+lua("semaphore"))
	for i := range scripts {
		s := &scripts[i]
		s.source = parts.Replace(lua(s.name))
		s.sha = goredis.NewScript(s.source).Hash()
	}
})

// scriptsOf has the scripts of each kind of op: for exclusive locks, for shared ones and for
// permits.
var scriptsOf = [...]struct{ exclusive, shared, permit int }{
	cache.OpTry:       {scriptAcquire, scriptShare, scriptPermit},
	cache.OpJoin:      {scriptAcquire, scriptShare, scriptPermit},
	cache.OpWithdraw:  {scriptRelease, scriptRelease, scriptPermitRelease},
	cache.OpRelease:   {scriptRelease, scriptRelease, scriptPermitRelease},
	cache.OpRenew:     {scriptRenew, scriptRenew, scriptPermitRenew},
	cache.OpDowngrade: {exclusive: scriptDowngrade, shared: scriptDowngrade}, // permits are not valid
	cache.OpPeek:      {scriptPeek, scriptPeek, scriptPermitPeek},
}

func scriptFor(op *upstream.Op) int {
	switch of := &scriptsOf[op.Kind]; op.Mode {
	case cache.Permit:
		return of.permit
	case cache.Shared:
		return of.shared
	default:
		return of.exclusive
	}
}
