package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// relay forwards what one Redis server sends to one daemon. Sentinels, and the nodes of a cluster,
// name the other servers. The relay replaces these names by the daemon's own links to them.
type relay struct {
	*hub
	target string
	names  *names
}

// names replaces addresses. It is set before any daemon connects.
type names struct {
	host  string            // of all links
	ports map[string]string // by server: the port of the link to it
	whole *strings.Replacer // replaces a host with its port
}

const serverHost = "127.0.0.1"

// set replaces each server's address by the address of its link.
func (n *names) set(servers, links []string) error {
	n.ports = map[string]string{}
	var pairs []string
	for i, s := range servers {
		_, port, err := net.SplitHostPort(s)
		if err == nil {
			n.host, n.ports[port], err = net.SplitHostPort(links[i])
		}
		if err != nil {
			return err
		}
		for _, between := range []string{":", " "} {
			pairs = append(pairs, serverHost+between+port, n.host+between+n.ports[port])
		}
	}
	n.whole = strings.NewReplacer(pairs...)
	return nil
}

// text returns the replacement for a text: for a host or a port alone, or for both in it.
func (n *names) text(s string) string {
	if port := n.ports[s]; port != "" {
		return port
	}
	if s == serverHost {
		return n.host
	}
	return n.whole.Replace(s)
}

// newRelay listens. It forwards after start has been called.
func newRelay(target string, n *names) (*relay, error) {
	h, err := newHub()
	if err != nil {
		return nil, err
	}
	return &relay{hub: h, target: target, names: n}, nil
}

func (r *relay) start() { r.hub.start(r.serve) }

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.target)
	if err != nil || !r.keep(server) {
		return
	}
	r.wg.Go(func() {
		defer r.drop(server)
		_, _ = io.Copy(server, client)
	})
	_ = r.names.pass(bufio.NewWriter(client), bufio.NewReader(server))
}

// pass copies RESP: texts that follow their length, and lines.
func (n *names) pass(out *bufio.Writer, in *bufio.Reader) error {
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return err
		}
		rest := bytes.TrimRight(line[1:], "\r\n")
		switch line[0] {
		case '$', '=', '!':
			size, err := strconv.Atoi(string(rest))
			if err != nil || size < 0 { // no text, or a text in pieces, which no server sends
				break
			}
			body := make([]byte, size+2)
			if _, err := io.ReadFull(in, body); err != nil {
				return err
			}
			text := n.text(string(body[:size]))
			line = fmt.Appendf(nil, "%c%d\r\n%s\r\n", line[0], len(text), text)
		case '-', '+', ':':
			line = fmt.Appendf(nil, "%c%s\r\n", line[0], n.text(string(rest)))
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
