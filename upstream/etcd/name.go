package etcd

import "strings"

// Name is what etcdctl lock and concurrency.NewMutex call a lock of ours.
func (c Config) Name(lock string) string {
	return strings.TrimSuffix((&names{root: c.Prefix + "/"}).dir(lock), "/")
}
