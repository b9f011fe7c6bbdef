// Command etcdserver is the etcd server of the tests, and with ctl as its first
// argument etcdctl: their own main functions, in a module of its own, so that the
// product's go.mod does not grow by a server.
package main

import (
	"os"

	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "ctl" {
		os.Args = append([]string{"etcdctl"}, os.Args[2:]...)
		ctlv3.MustStart()
		return
	}
	etcdmain.Main(os.Args)
}
