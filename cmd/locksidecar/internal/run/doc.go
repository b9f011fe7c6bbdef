// Package run runs a command in its own process group. The group gets the terminal and returns it
// at the end. A stop of the group also stops the job of this process, signals go to the whole
// group, and the command is killed when this process ends. Raw and Stop are for a program that uses
// the terminal itself. The package knows nothing of locks.
//
// A Process owns one goroutine, which is locked to its thread. It forks the child and waits for it,
// because PR_SET_PDEATHSIG follows the thread that forked, not the process. The goroutine ends with
// the child. It sends on Events, which has room for the end. The caller has to read the stops.
//
// All methods are for one goroutine, the one that reads Events. There are no locks.
//
// Only Linux has PR_SET_PDEATHSIG. On other systems the child survives if this process is killed by
// SIGKILL.
package run
