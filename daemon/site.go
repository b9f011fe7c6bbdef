package daemon

import (
	"os"

	"github.com/locksidecar/locksidecar/daemon/listen"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// Errors of Listen.
var (
	ErrInUse  = listen.ErrInUse
	ErrSocket = listen.ErrSocket
)

// CheckPath returns an error if there is something at the path of the socket that is neither a
// socket nor a link.
func CheckPath(path string) error { return listen.CheckPath(path) }

// site has the sockets with which a daemon serves, and the lock file of the socket.
type site struct {
	takeover.Sockets // Admin has only the admin listeners that another process has passed on
	// shared is true until a takeover is committed. The other process still uses the same sockets and
	// files, and keeps them if the takeover fails. So this process must not remove them.
	shared bool
}

// newSite locks the socket for this process, and makes the socket unless another program has made
// it. It returns takeover.ErrLeft if there is a parked state in a file.
func newSite(cfg *Config) (*site, error) {
	lock, err := listen.Lock(cfg.Socket)
	if err != nil {
		return nil, err
	}
	if takeover.LeftInFile(cfg.Socket) {
		_ = lock.Close()
		return nil, takeover.ErrLeft
	}
	return lockedSite(cfg, lock)
}

// lockedSite returns the site of a socket that this process has locked with the file lock. It makes
// the socket unless another program has made it. After an error it has closed lock.
func lockedSite(cfg *Config, lock *os.File) (at *site, err error) {
	at = &site{Sockets: takeover.Sockets{Listener: cfg.Listener, Lock: lock}}
	if cfg.Listener == nil {
		if at.Listener, err = listen.Unix(cfg.Socket, cfg.SocketMode, cfg.SocketGroup); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return at, nil
}

// closeSocket closes the socket, and removes it if this daemon owns it. The lock file is still
// held, so no other daemon can have made a socket of that name.
func (s *site) closeSocket(cfg *Config) {
	_ = s.Listener.Close()
	if cfg.Listener == nil && !s.shared {
		_ = os.Remove(cfg.Socket)
	}
}

func (s *site) close(cfg *Config) {
	s.closeSocket(cfg)
	s.Sockets.Close()
}
