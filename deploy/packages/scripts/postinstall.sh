#!/bin/sh
# The group and the directory; what runs goes on as it is, and takes its time to be
# replaced by whoever knows when (README.md of deploy/).
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers locksidecar.conf
fi
if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create locksidecar.conf
	systemctl daemon-reload
fi
