#!/usr/bin/env bash
# Builds the image, for linux/amd64 and linux/arm64, without a container engine: an OCI archive,
# which podman load, docker load, skopeo and regctl take.
#
#   deploy/packages/image.sh PROGRAM- OUT.tar     PROGRAM-linux-amd64 and -arm64 are the programs
#
# It has the program, the certificates that browsers trust, and the user 65532. XDG_RUNTIME_DIR makes
# /run/locksidecar/locksidecar.sock the default socket; a configuration file can name another one. The
# time in the image is SOURCE_DATE_EPOCH. PYTHON is a Python that has certifi.
set -euo pipefail
umask 022

[[ $# == 2 ]] || { echo "usage: image.sh PROGRAM- OUT.tar" >&2; exit 1; }
go=${GO:-go} python=${PYTHON:-python3}
prefix=$1 out=$2
name=ghcr.io/locksidecar/locksidecar
version=$(<"$(dirname "${BASH_SOURCE[0]}")/../../cmd/locksidecar/VERSION")
export SOURCE_DATE_EPOC=$SOURCE_DATE_EPOCH # regctl spells it so
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GOBIN=$work "$go" install github.com/regclient/regclient/cmd/regctl@v0.11.7
layout=ocidir://$work/layout

mkdir -p "$work"/root/{etc/ssl/certs,usr/bin,run/locksidecar}
cp "$("$python" -m certifi)" "$work/root/etc/ssl/certs/ca-certificates.crt"
printf '%s\n' root:x:0:0:root:/:/sbin/nologin nonroot:x:65532:65532:nonroot:/:/sbin/nologin >"$work/root/etc/passwd"
printf '%s\n' root:x:0: nonroot:x:65532: >"$work/root/etc/group"

tar=(tar -C "$work/root" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --numeric-owner)
for arch in amd64 arm64; do
	install -m 0755 "${prefix}linux-$arch" "$work/root/usr/bin/locksidecar"
	"${tar[@]}" --owner=0 --group=0 -cf "$work/layer.tar" etc usr
	# A new volume that is mounted there gets its owner.
	"${tar[@]}" --owner=65532 --group=65532 -rf "$work/layer.tar" run/locksidecar
	"$work/regctl" image create "$layout:$arch" --platform "linux/$arch" --created "$created" \
		--label org.opencontainers.image.title=locksidecar \
		--label "org.opencontainers.image.version=$version" \
		--label org.opencontainers.image.source=https://github.com/locksidecar/locksidecar \
		--label org.opencontainers.image.licenses=Apache-2.0
	"$work/regctl" image mod "$layout:$arch" --replace --layer-add "tar=$work/layer.tar" \
		--user 65532:65532 --env XDG_RUNTIME_DIR=/run \
		--config-entrypoint '["/usr/bin/locksidecar"]' --config-cmd '["serve","--log-format=json"]'
done
"$work/regctl" index create "$layout:$version" --ref "$layout:amd64" --ref "$layout:arm64"
"$work/regctl" image export --name "$name:$version" "$layout:$version" "$out"
