package run

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Look finds the file that a shell would run for name: name itself if it has a slash, or else the
// first executable in path (a PATH). The error is an *fs.PathError. It is ENOENT if there is no
// such file. If there is a file that cannot be run, the error says why.
func Look(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	miss := error(&fs.PathError{Op: "run", Path: name, Err: syscall.ENOENT})
	if name == "" {
		return "", miss
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		// filepath.Join would remove "./", and with it the slash.
		file := dir + "/" + name
		switch err := executable(file); {
		case err == nil:
			return file, nil
		case !missing(err):
			miss = err // the file cannot be run, but a later one may be
		}
	}
	return "", miss
}

func missing(err error) bool {
	pe, ok := err.(*fs.PathError)
	return ok && (pe.Err == syscall.ENOENT || pe.Err == syscall.ENOTDIR)
}

func executable(file string) error {
	fi, err := os.Stat(file)
	if err != nil {
		if pe, ok := err.(*fs.PathError); ok {
			pe.Op = "run"
		}
		return err
	}
	if fi.IsDir() {
		return &fs.PathError{Op: "run", Path: file, Err: syscall.EISDIR}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "run", Path: file, Err: err}
	}
	return nil
}

// The exit codes of a shell for a command that cannot be started.
const (
	CodeCannotRun = 126 // the file exists, but cannot be run
	CodeNotFound  = 127
)

// StartCode returns the exit code that a shell has for an error of Look or Start.
func StartCode(err error) int {
	if missing(err) {
		return CodeNotFound
	}
	return CodeCannotRun
}
