package main

import (
	"context"
	"os"
	"time"
)

// watchEvery is short compared with the time that Kubernetes takes to update a file in a pod.
const watchEvery = 2 * time.Second

// watcher notices changes of a configuration file.
type watcher struct {
	file string      // empty if it is not watched
	used os.FileInfo // describes the file as the daemon has read it; nil if unknown
}

// watch calls changed after each change of the file, until ctx ends. A program may write a file in
// several steps, and a part of a configuration can be a valid one. So a file counts only once it
// has stayed the same for an interval. Identity, size and modification time are compared, which
// works for the symbolic links that Kubernetes exchanges. A call of the file system may block
// without end, so no goroutine waits for the end of watch.
func (w watcher) watch(ctx context.Context, changed func()) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for seen := w.used; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := os.Stat(w.file)
		if err == nil && unchanged(now, seen) && !unchanged(now, w.used) {
			w.used = now
			changed()
		}
		seen = now
	}
}

func unchanged(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() &&
		a.ModTime().Equal(b.ModTime())
}
