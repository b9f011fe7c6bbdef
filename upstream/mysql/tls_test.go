package mysql_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestTLSWithBothSidesChecked(t *testing.T) {
	ca := testserver.NewAuthority(t, t.TempDir())
	ca.Issue("server")
	ca.Issue("client")
	file := ca.File
	srv := testserver.StartMariaDB(t, quickly, "--ssl-ca="+file("ca.crt"),
		"--ssl-cert="+file("server.crt"), "--ssl-key="+file("server.key"))
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
	refused(t, url("safe", "tls=true"), "certificate") // signed by an unknown authority
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
