package zookeeper

// Name is the path that Curator's InterProcessMutex is given for a lock of ours.
func (c Config) Name(lock string) string { return c.Chroot + "/" + escape(lock) }
