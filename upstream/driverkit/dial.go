package driverkit

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Dial connects to addr by d, with TLS unless conf is nil.
func Dial(
	ctx context.Context, d *net.Dialer, network, addr string, conf *tls.Config,
) (net.Conn, error) {
	c, err := sock.Dial(ctx, d, network, addr)
	if err != nil || conf == nil {
		return c, err
	}
	t := tls.Client(c, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		advice := cmp.Or(TLSAdvice(err), " ("+notTLS+")")
		return nil, fmt.Errorf("TLS handshake with %s: %w%s", addr, err, advice)
	}
	return t, nil
}

const notTLS = "is it a TLS port?"

// tlsAdvice has the advice for errors that contain certain texts. It compares texts, because some
// client libraries pass on only the text of an error.
var tlsAdvice = []struct {
	advice string
	parts  []string
}{
	{"check ca= in the URL: no certificate in it has signed the server's",
		[]string{"certificate signed by unknown authority", "certificate is not trusted"}},
	{"the server's certificate is for another name: check the host, or server_name=, in the URL",
		[]string{"certificate is valid for", "certificate is not valid for",
			"doesn't contain any IP SANs", "cannot validate certificate"}},
	{"the server asks for a client certificate that it trusts: check cert= and key= in the URL",
		[]string{"certificate required", "bad certificate", "unknown certificate authority"}},
	{"check the server's certificate and this machine's clock",
		[]string{"certificate has expired"}},
	{notTLS,
		[]string{"first record does not look like a TLS handshake", "handshake failed: EOF"}},
}

// TLSAdvice returns what to check after a failed TLS handshake, in parentheses after a space. It is
// empty for other errors.
func TLSAdvice(err error) string {
	msg := err.Error()
	for _, a := range tlsAdvice {
		for _, part := range a.parts {
			if strings.Contains(msg, part) {
				return " (" + a.advice + ")"
			}
		}
	}
	return ""
}
