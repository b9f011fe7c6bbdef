package storeurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
)

// TLS has the TLS settings of a URL.
type TLS struct {
	On bool
	// ByParameter is set if the parameter tls turns TLS on, not the scheme.
	ByParameter bool
	CA          string // file with the certificates to trust instead of the system's
	Cert, Key   string // files with our own certificate and its key
	ServerName  string // expected in the server's certificate instead of the host
}

func (t *TLS) params(canTLS bool) map[string]func(string) error {
	p := map[string]func(string) error{
		"ca":          Text(&t.CA),
		"cert":        Text(&t.Cert),
		"key":         Text(&t.Key),
		"server_name": Text(&t.ServerName),
	}
	if canTLS {
		p["tls"] = Bool(&t.On)
	}
	return p
}

func (t *TLS) check(spec Spec) error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("cert and key need each other")
	}
	if t.On || t.CA == "" && t.Cert == "" && t.ServerName == "" {
		return nil
	}
	if !spec.CanTLS {
		return fmt.Errorf("ca, cert, key and server_name need the scheme %s", spec.Secure[0])
	}
	return errors.New("ca, cert, key and server_name need tls=true")
}

// Config returns the client's configuration for a server at addr, or nil without TLS. addr is
// host:port, or empty if the dialer knows it. Config reads the files at each call.
func (t *TLS) Config(addr string) (*tls.Config, error) {
	if !t.On {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" && addr != "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		c.ServerName = host
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read ca: no certificate in %s", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("read cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
