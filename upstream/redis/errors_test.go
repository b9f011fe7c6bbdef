package redis

import (
	"strings"
	"testing"
)

func TestOnlyErrorsThatProveThatNothingWasDoneAreRefusals(t *testing.T) {
	for msg, want := range map[string]bool{
		"OOM command not allowed when used memory > 'maxmemory'.":                                       true,
		"-OOM command not allowed when used memory > 'maxmemory'.":                                      true,
		"READONLY You can't write against a read only replica.":                                         true,
		"LOADING Redis is loading the dataset in memory":                                                true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":        true,
		"NOAUTH Authentication required.":                                                               true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                              true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":              true,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist":       true,
		"NOREPLICAS Not enough good replicas to write.":                                                 true,
		"CLUSTERDOWN Hash slot not served":                                                              true,
		"NOSCRIPT No matching script. Please use EVAL.":                                                 true,
		"ERR unknown command 'evalsha', with args beginning with:":                                      true,
		"ERR max number of clients reached":                                                             true,
		"OOM command not allowed when used memory > 'maxmemory'. script: 00, on @user_script:7.":        false,
		"ERR Error running script (call to f_00): @user_script:1: user_script:1: x":                     false,
		"ERR Error running script (call to f_00): @user_script: 1: Script killed by user with SCRIPT …": false,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                             false,
		"ERR something new": false,
		"OOMPH":             false,
		"":                  false,
	} {
		if refused(msg) != want {
			t.Errorf("%q: %v", msg, !want)
		}
	}
}

func TestAScriptIsItsPartsAndNothingElse(t *testing.T) {
	makeScripts()
	for i := range scripts {
		s := scripts[i].source
		slow, semaphore := 1, 0
		switch i {
		// These scripts have no part that reads siblings.
		case scriptMoving, scriptPermitMoving, scriptPermitPeek:
			slow = 0
		case scriptPermit, scriptPermitRelease, scriptPermitRenew:
			slow, semaphore = 0, 1
		}
		if strings.Count(s, lua("fast")) != 1 || strings.Count(s, lua("slow")) != slow ||
			strings.Count(s, lua("semaphore")) != semaphore ||
			strings.Count(s, lua("common")) != slow+semaphore || strings.Contains(s, "--@") {
			t.Errorf("script %d is not put together", i)
		}
	}
}
