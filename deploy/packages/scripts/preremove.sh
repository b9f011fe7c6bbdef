#!/bin/sh
# $1 is "remove" (deb) or 0 (rpm) if the package is removed, and another word if it is upgraded.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now locksidecar.socket locksidecar.service
	fi
	;;
esac
