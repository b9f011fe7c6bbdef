package chaos

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Orders are the parameters of a worker, as words NAME=VALUE after its program. The workers in
// Python and Java understand the same words.
type Orders struct {
	Socket, Register string
	Worker           int
	Prefix           string // of the keys
	Keys, Owners     int
	Semaphores       int // number of keys that also have a semaphore
	TTL              time.Duration
	Pause            time.Duration // longest pause between turns
	Seed             uint64
}

const roleEnv, roleWorker = "LOCKSIDECAR_CHAOS_ROLE", "worker"

func (o *Orders) words() []string {
	return []string{"socket=" + o.Socket, "register=" + o.Register, fmt.Sprint("worker=", o.Worker),
		"prefix=" + o.Prefix,
		fmt.Sprint("keys=", o.Keys), fmt.Sprint("owners=", o.Owners),
		fmt.Sprint("semaphores=", o.Semaphores), fmt.Sprint("ttl=", o.TTL.Milliseconds()),
		fmt.Sprint("pause=", o.Pause.Milliseconds()), fmt.Sprint("seed=", o.Seed),
		fmt.Sprint("offset=", ahead())}
}

// ahead returns how far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC, which Java reads. It returns
// the least of several differences: if the process is delayed between the two readings, a
// difference is too large.
func ahead() int64 {
	least := int64(forever)
	for range 100 {
		var mono unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
		least = min(least, now()-mono.Nano())
	}
	return least
}

func (o *Orders) read(words []string) error {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		var err error
		switch name {
		case "socket":
			o.Socket = value
		case "register":
			o.Register = value
		case "prefix":
			o.Prefix = value
		case "worker":
			_, err = fmt.Sscan(value, &o.Worker)
		case "keys":
			_, err = fmt.Sscan(value, &o.Keys)
		case "owners":
			_, err = fmt.Sscan(value, &o.Owners)
		case "semaphores":
			_, err = fmt.Sscan(value, &o.Semaphores)
		case "seed":
			_, err = fmt.Sscan(value, &o.Seed)
		case "ttl", "pause":
			var ms int64
			_, err = fmt.Sscan(value, &ms)
			if d := time.Duration(ms) * time.Millisecond; name == "ttl" {
				o.TTL = d
			} else {
				o.Pause = d
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	return nil
}
