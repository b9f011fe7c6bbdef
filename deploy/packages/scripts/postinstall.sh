#!/bin/sh
# Makes the group and the directory. A running daemon continues to run; the administrator replaces
# it later (docs/operate/upgrade.md).
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers locksidecar.conf
fi
if [ -d /run/systemd/system ]; then
	systemd-tmpfiles --create locksidecar.conf
	systemctl daemon-reload
fi
