package postgres_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestTLSWithBothSidesChecked(t *testing.T) {
	ca := testserver.NewAuthority(t, t.TempDir())
	ca.Issue("server")
	ca.Issue("client")
	file := ca.File
	srv := testserver.StartPostgres(t, quickly)
	data := srv.Value("SHOW data_directory")
	write := func(name string, content []byte) {
		t.Helper()
		path := filepath.Join(data, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		srv.Own(path)
	}
	for _, name := range []string{"ca.crt", "server.crt", "server.key"} {
		content, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, content)
	}
	write("pg_hba.conf", []byte("local all all trust\n"+
		"hostssl locks sure all scram-sha-256 clientcert=verify-ca\n"+
		"hostssl locks safe all scram-sha-256\n"))
	for _, statement := range []string{
		"CREATE ROLE sure LOGIN PASSWORD 'geheim'", "CREATE ROLE safe LOGIN PASSWORD 'geheim'",
		"GRANT CREATE ON SCHEMA public TO sure", "GRANT CREATE ON SCHEMA public TO safe",
		"ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET ssl_ca_file = 'ca.crt'",
		"ALTER SYSTEM SET ssl_cert_file = 'server.crt'", "ALTER SYSTEM SET ssl_key_file = 'server.key'",
		"SELECT pg_reload_conf()"} {
		srv.Exec(statement)
	}
	url := func(user, query string) string {
		return "postgres://" + user + ":geheim@" + srv.Addr() + "/locks?" + query
	}
	trust := "tls=true&ca=" + file("ca.crt")
	ours := "&cert=" + file("client.crt") + "&key=" + file("client.key")

	eventually(t, "the server speaks TLS", func() bool {
		_, err := openURL(t, url("sure", trust+ours+"&table=first"))
		return err == nil
	})
	p := newPeer(t, url("sure", trust+ours+"&table=first"))
	a, _ := p.take("a", cache.Exclusive)
	for range 3 { // on a connection that has been idle
		p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	}
	if n := p.Connections(); n > 3 {
		t.Errorf("%d connections: idle ones are not used again", n)
	}
	newPeer(t, url("safe", trust)).take("b", cache.Exclusive)

	for _, c := range []struct{ user, query, says string }{
		{"safe", "", "pg_hba.conf"},           // not encrypted
		{"sure", trust, "client certificate"}, // without our certificate
		// signed by an authority that we do not know
		{"safe", "tls=true", "no certificate in it has signed"},
		{"safe", trust + "&server_name=elsewhere", "elsewhere"},
		{"safe", "tls=true&ca=" + file("none"), "none"},
		{"safe", "tls=true&ca=" + file("client.key"), "no certificate"},
		{"safe", trust + "&cert=" + file("client.crt") + "&key=" + file("none"), "none"},
	} {
		if _, err := openURL(t, url(c.user, c.query)); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s?%s: %v does not say %s", c.user, c.query, err, c.says)
		}
	}
	if _, err := openURL(t, strings.Replace(url("safe", trust), "geheim", "falsch", 1)); err == nil ||
		!strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "falsch") {
		t.Errorf("with a wrong password: %v", err)
	}
}
