package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/admin/page"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/peer"
	"github.com/locksidecar/locksidecar/protocol"
)

type peerKey struct{}

// withPeer adds the process at the other end of the admin socket to the context.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	local, ok := c.(*conn)
	if !ok {
		return ctx
	}
	p := engine.Unknown
	if rc, err := local.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { p = peer.Of(int(fd)) })
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// isRootOrSelf reports whether a peer is root or the daemon's own user.
func isRootOrSelf(p *engine.Peer) bool { return p.UID == 0 || p.UID == os.Geteuid() }

// localOnly refuses requests on TCP from other hosts, which may read metrics but not keys and their
// holders. It also refuses requests for a host name that may not be this host's. Otherwise the
// owner of a web page could let its name point to this host (DNS rebinding), and read the keys.
func (a *Server) localOnly(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, local := r.Context().Value(peerKey{}).(engine.Peer); !local {
			switch from, err := netip.ParseAddrPort(r.RemoteAddr); {
			case err != nil || !from.Addr().Unmap().IsLoopback():
				http.Error(w, "locks are shown to this host alone: forward a port, or the admin socket, "+
					"to see them from elsewhere", http.StatusForbidden)
				return
			case !a.isOurs(r.Host):
				http.Error(w, "not under this name: use localhost, or the address of admin_listen",
					http.StatusMisdirectedRequest)
				return
			}
		}
		next(w, r)
	})
}

// isOurs reports whether the host of a request is localhost or the host of admin_listen. If the
// daemon listens on all addresses, any IP address is accepted, because DNS rebinding needs a name.
func (a *Server) isOurs(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") || a.host != "" && strings.EqualFold(host, a.host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	all, err := netip.ParseAddr(a.host)
	return ip.IsLoopback() || a.host == "" || err == nil && all.IsUnspecified()
}

// view returns the view that a request asks for.
func (a *Server) view(r *http.Request) (engine.View, error) {
	q, err := engine.ParseViewQuery(r.URL.Query())
	if err != nil {
		return engine.View{}, err
	}
	return a.daemon.View(q)
}

// page answers a view as HTML.
func (a *Server) page(w http.ResponseWriter, r *http.Request) {
	q, err := engine.ParseViewQuery(r.URL.Query())
	var v engine.View
	if err == nil {
		if r.URL.Query().Get("sort") == "" {
			q.Sort = page.DefaultSort
		}
		v, err = a.daemon.View(q)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p := page.Page{View: v, Refresh: r.URL.Query().Get("refresh") == "on", MaxLost: lostMost,
		Every: pointEvery, Points: pointMost}
	p.Host, _ = os.Hostname()
	text, err := p.HTML()
	if err != nil {
		a.cfg.Log.Error("page failed", zap.String("event", "page_failed"), zap.Error(err))
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	pageHeaders(w.Header(), "text/html; charset=utf-8")
	_, _ = w.Write(text)
}

func (a *Server) pageFile(w http.ResponseWriter, r *http.Request) {
	text, kind := page.File(r.PathValue("file"))
	if kind == "" {
		http.NotFound(w, r)
		return
	}
	pageHeaders(w.Header(), kind)
	_, _ = w.Write(text)
}

func pageHeaders(h http.Header, kind string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", page.Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// viewJSON answers a view as JSON.
func (a *Server) viewJSON(w http.ResponseWriter, r *http.Request) {
	v, err := a.view(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answerJSON(w, http.StatusOK, v)
}

func answerJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

// maxForm bounds the form of an unlock: a key, with up to three characters for each byte, and short
// fields.
const maxForm = 4 << 10

// unlock ends the holds of a key by force, for those who may, on the admin socket.
func (a *Server) unlock(w http.ResponseWriter, r *http.Request) {
	fail := func(code int, text string) { answerJSON(w, code, map[string]string{"error": text}) }
	by, local := r.Context().Value(peerKey{}).(engine.Peer)
	if !local {
		fail(http.StatusNotFound, "nothing can be unlocked by TCP: use the admin socket")
		return
	}
	if !a.daemon.MayUnlock(&by) {
		a.cfg.Log.Warn("unlocking denied", zap.String("event", "unlock_denied"),
			zap.Int("by_uid", by.UID), zap.Int("by_pid", by.PID))
		fail(http.StatusForbidden, "only root, the daemon's own user and operators may unlock by force")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		fail(http.StatusBadRequest, "this is no form: "+err.Error())
		return
	}
	key, mode := r.PostForm.Get("key"), r.PostForm.Get("mode")
	if err := protocol.CheckKey(key); err != nil {
		fail(http.StatusBadRequest, err.Error())
		return
	}
	if mode != "" && mode != "lock" && mode != "semaphore" {
		fail(http.StatusBadRequest, "mode is lock or semaphore")
		return
	}
	var fence uint64
	if s := r.PostForm.Get("fence"); s != "" {
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			fail(http.StatusBadRequest, "fence is a number of 63 bits")
			return
		}
		fence = n
	}
	u, err := a.daemon.Unlock(key, mode == "semaphore", fence, by)
	if err != nil {
		fail(http.StatusServiceUnavailable,
			"nothing was unlocked: "+err.Error()+"; repeat the request")
		return
	}
	if u.Released == 0 && u.FreeIn == 0 {
		text := "nobody holds the lock %q on this host"
		if mode == "semaphore" {
			text = "nobody holds permits of the semaphore %q on this host"
		}
		if fence != 0 {
			text += " under that fence"
		}
		fail(http.StatusNotFound, fmt.Sprintf(text, key))
		return
	}
	answerJSON(w, http.StatusOK, u)
}

// TakeoverProtocol is the protocol to which a process that wants to take over upgrades its
// connection.
const TakeoverProtocol = "locksidecar-takeover"

// takeover serves a claim.
func (a *Server) takeover(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Takeover == nil {
		http.Error(w, "not on this system", http.StatusNotImplemented)
		return
	}
	if r.Header.Get("Upgrade") != TakeoverProtocol {
		http.Error(w, "this is for another locksidecar", http.StatusUpgradeRequired)
		return
	}
	if by, local := r.Context().Value(peerKey{}).(engine.Peer); !local || !isRootOrSelf(&by) {
		http.Error(w, "only root and the daemon's own user may take over, by the admin socket",
			http.StatusForbidden)
		return
	}
	nc, rest, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer nc.Close()
	local, ok := nc.(*conn)
	if !ok || rest.Reader.Buffered() > 0 {
		_, _ = fmt.Fprintf(nc, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n")
		return
	}
	c := local.UnixConn
	_ = c.SetDeadline(time.Now().Add(readTime))
	const upgrade = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
	if _, err := io.WriteString(c, upgrade+TakeoverProtocol+"\r\n\r\n"); err != nil {
		return
	}
	a.cfg.Takeover(c)
}
