package mysql_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestTLSWithBothSidesChecked(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	file := func(n string) string { return filepath.Join(dir, n) }
	srv := testserver.StartMariaDB(t, quickly, "--ssl-ca="+file("ca.crt"), "--ssl-cert="+file("server.crt"), "--ssl-key="+file("server.key"))
	srv.Exec("CREATE USER sure IDENTIFIED BY 'geheim' REQUIRE X509; GRANT ALL ON locks.* TO sure; CREATE USER safe IDENTIFIED BY 'geheim' REQUIRE SSL; GRANT ALL ON locks.* TO safe")
	url := func(user, query string) string {
		return "mysql://" + user + ":geheim@" + srv.Addr() + "/locks?" + query
	}
	trust := "tls=true&ca=" + file("ca.crt")
	ours := "&cert=" + file("client.crt") + "&key=" + file("client.key")

	p := newPeer(t, url("sure", trust+ours))
	p.take("a", cache.Exclusive)
	newPeer(t, url("safe", trust)).take("b", cache.Exclusive)

	refused(t, url("safe", ""), "Access denied")       // not encrypted
	refused(t, url("sure", trust), "Access denied")    // without our certificate
	refused(t, url("safe", "tls=true"), "certificate") // signed by nobody we know
	refused(t, url("safe", trust+"&server_name=elsewhere"), "elsewhere")
	for query, says := range map[string]string{
		"tls=true&ca=" + file("none"):                                  "none",
		"tls=true&ca=" + file("client.key"):                            "no certificate",
		trust + "&cert=" + file("client.crt") + "&key=" + file("none"): "none",
	} {
		if _, err := openURL(t, url("safe", query)); err == nil {
			t.Errorf("%s opens, and should say %s", query, says)
		}
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	a := &authority{cert: &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}}
	a.key = a.write(t, dir, "ca", a.cert)
	return a
}

func (a *authority) issue(t *testing.T, dir, name string) {
	a.write(t, dir, name, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}})
}

func (a *authority) write(t *testing.T, dir, name string, cert *x509.Certificate) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	pk, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pk}} {
		if err := os.WriteFile(filepath.Join(dir, name+ext), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
