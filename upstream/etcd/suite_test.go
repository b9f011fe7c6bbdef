package etcd_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	newHost := func(options string) storetest.NewHost {
		return func(t testing.TB, prefix string) upstream.Store {
			cfg, err := etcd.Parse("etcd://" + srv.Addr() + options + "&prefix=" + prefix)
			if err != nil {
				t.Fatal(err)
			}
			s, err := etcd.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
	storetest.Run(t, newHost("?ttl=30s&timeout=10s"),
		storetest.Options{NewShortLived: newHost("?ttl=6s&timeout=3s"),
			Server: &storetest.Server{Pause: srv.Pause, Resume: srv.Resume, Restart: srv.Restart},
			Residue: func(t testing.TB, prefix string) []string {
				r, err := srv.Admin().Get(t.Context(), prefix+"/", clientv3.WithPrefix())
				if err != nil {
					t.Fatal(err)
				}
				var left []string
				for _, kv := range r.Kvs {
					if kv.Lease == 0 {
						left = append(left, string(kv.Key)+" for ever")
					} else if string(kv.Value) != "" { // the key of a session ends with its lease
						left = append(left, string(kv.Key))
					}
				}
				return left
			}})
}
