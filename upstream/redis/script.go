package redis

import (
	_ "embed"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// The scripts' order is the order in which a batch's calls are sent: what frees
// keys comes first.
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

var (
	//go:embed lua/fast.lua
	luaFast string
	//go:embed lua/base.lua
	luaBase string
	//go:embed lua/reserve.lua
	luaReserve string
	//go:embed lua/rebase.lua
	luaRebase string
	//go:embed lua/common.lua
	luaCommon string
	//go:embed lua/slow.lua
	luaSlow string
	//go:embed lua/semqueues.lua
	luaSemqueues string
	//go:embed lua/semaphore.lua
	luaSemaphore string
	//go:embed lua/release.lua
	luaRelease string
	//go:embed lua/downgrade.lua
	luaDowngrade string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/acquire.lua
	luaAcquire string
	//go:embed lua/share.lua
	luaShare string
	//go:embed lua/peek.lua
	luaPeek string
	//go:embed lua/moving.lua
	luaMoving string
	//go:embed lua/permit.lua
	luaPermit string
	//go:embed lua/permitrelease.lua
	luaPermitRelease string
	//go:embed lua/permitrenew.lua
	luaPermitRenew string
	//go:embed lua/permitpeek.lua
	luaPermitPeek string
	//go:embed lua/permitmoving.lua
	luaPermitMoving string
)

// script is one of the Lua scripts, with what its calls begin with.
type script struct {
	source string
	sha    any  // its digest, boxed once for all calls
	fence  bool // is the first of its KEYS
	queued bool // is
	gives  bool // a lease, or a longer one
	permit bool // its other KEYS are semaphores', not locks'
}

var scripts = [scriptCount]script{
	scriptRelease:   {source: luaRelease, queued: true},
	scriptDowngrade: {source: luaDowngrade, queued: true, gives: true},
	scriptRenew:     {source: luaRenew, queued: true, gives: true}, // and fence where bases are asked for
	scriptAcquire:   {source: luaAcquire, fence: true, gives: true},
	scriptShare:     {source: luaShare, fence: true, gives: true},
	scriptPeek:      {source: luaPeek},
	scriptMoving:    {source: luaMoving, gives: true},

	scriptPermit:        {source: luaPermit, fence: true, gives: true, permit: true},
	scriptPermitRelease: {source: luaPermitRelease, queued: true, permit: true},
	scriptPermitRenew:   {source: luaPermitRenew, queued: true, gives: true, permit: true}, // as scriptRenew
	scriptPermitPeek:    {source: luaPermitPeek, permit: true},
	scriptPermitMoving:  {source: luaPermitMoving, gives: true, permit: true},
}

var reserving = strings.NewReplacer("--@base\n", luaBase, "--@reserve\n", luaReserve)

var parts = strings.NewReplacer("--@base\n", luaBase, "--@fast\n", luaFast, "--@reserve\n", luaReserve,
	"--@rebase\n", reserving.Replace(luaRebase), "--@slow\n", luaCommon+luaSlow, "--@semqueues\n", luaSemqueues, "--@semaphore\n", luaCommon+luaSemaphore)

func init() {
	for i := range scripts {
		s := &scripts[i]
		s.source = parts.Replace(s.source)
		s.sha = goredis.NewScript(s.source).Hash()
	}
}
