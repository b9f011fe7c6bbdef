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

// site is where a daemon serves.
type site struct {
	takeover.Sockets // Admin has those admin listeners that another process has passed on
	// shared is set while another process uses the same sockets and files. The takeover may still
	// fail.
	shared bool
}

// newSite locks the socket for this process, and makes the socket unless another program has. It
// returns takeover.ErrLeft if there is a parked state in a file.
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

// lockedSite makes the socket, which this process has locked, unless another program has made it.
// It closes lock after an error.
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

// closeSocket removes the socket, while the lock file is still held and the socket is surely this
// daemon's.
func (p *site) closeSocket(cfg *Config) {
	_ = p.Listener.Close()
	if cfg.Listener == nil && !p.shared {
		_ = os.Remove(cfg.Socket)
	}
}

func (p *site) close(cfg *Config) {
	p.closeSocket(cfg)
	p.Sockets.Close()
}
