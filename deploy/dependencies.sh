#!/usr/bin/env bash
# Checks what the program and the clients are made of: each dependency has a licence that may be
# given on with the program, and no fault is known of what is called of it.
#
#   deploy/dependencies.sh
#
# PYTHON is a Python that has the Python client.
set -euo pipefail
export LC_ALL=C

go=${GO:-go} python=${PYTHON:-python3}
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# licence FILE: what its text says it is, by a sentence that no other licence has.
licence() {
	local text
	text=$(tr -s '[:space:]' ' ' <"$1")
	case $text in
	*"Apache License Version 2.0"* | *"Apache License, Version 2.0"*) echo Apache-2.0 ;;
	*"Mozilla Public License Version 2.0"* | *"Mozilla Public License, version 2.0"*) echo MPL-2.0 ;;
	*"Permission is hereby granted, free of charge, to any person obtaining a copy"*) echo MIT ;;
	*"Redistribution and use in source and binary forms, with or without modification"*) echo BSD ;;
	*"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"*) echo ISC ;;
	*) echo none ;;
	esac
}

bad=0
complain() {
	echo "dependencies: $*" >&2
	bad=1
}

# Go: the modules of which something is linked into the program, on all that it is built for.
modules=$(for os in linux darwin; do
	GOOS=$os "$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/locksidecar
done | sort -u)
declare -A count
while read -r path dir; do
	of=
	for file in "$dir"/LICEN[CS]E* "$dir"/COPYING*; do
		[[ -f $file ]] || continue
		of=$(licence "$file")
		[[ $of == none ]] || break
	done
	case ${of:-none} in
	none) complain "$path: no licence that is known here, in $dir" ;;
	*) count[$of]=$((${count[$of]:-0} + 1)) ;;
	esac
done <<<"$modules"
((${#count[@]} > 0)) || complain "no modules were found"

# Python: what the client needs, as its packages say themselves.
"$python" - <<'PYTHON' || bad=1
import importlib.metadata as m, re, sys

bad = False
for need in m.requires("locksidecar") or []:
    if "extra ==" in need:
        continue
    name = re.match(r"[\w.-]+", need)[0]
    about = m.metadata(name)
    said = " ".join([about.get("License-Expression") or about.get("License") or "", *(about.get_all("Classifier") or [])])
    if not re.search(r"Apache|\bMIT\b|BSD|\bISC\b|MPL", said):
        print(f"dependencies: {name}: no licence that is known here: {said!r}", file=sys.stderr)
        bad = True
sys.exit(bad)
PYTHON

# Java: the client needs nothing at run time.
"$python" - <<'PYTHON' || bad=1
import sys, xml.etree.ElementTree as tree

ns = {"m": "http://maven.apache.org/POM/4.0.0"}
bad = False
for need in tree.parse("clients/java/pom.xml").iterfind("m:dependencies/m:dependency", ns):
    if need.findtext("m:scope", "", ns) != "test":
        print(f"dependencies: {need.findtext('m:artifactId', '', ns)}: the Java client has none but for tests", file=sys.stderr)
        bad = True
sys.exit(bad)
PYTHON

for of in "${!count[@]}"; do echo "$of: ${count[$of]} Go modules"; done | sort

# Faults: only those of code that is called count. Its database is on the network.
db=${GOVULNDB:-https://vuln.go.dev}
if "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/index/db.json", timeout=10)' "$db" 2>/dev/null; then
	"$go" run "$govulncheck" ./... || complain "known faults, as above"
else
	echo "govulncheck: skipped, its database at $db cannot be reached"
fi
exit "$bad"
