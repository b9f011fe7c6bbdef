#!/usr/bin/env bash
# Plants faults in a copy of the tree, one after the other, and shows that the
# simulator catches each. The checkout is not touched.
#
#   daemon/engine/sim/mutants/run.sh [SEEDS [MUTANT...]]
#
# A mutant is a patch beside this script. Its first line says what finds it: "seeds" is
# TestSeeds, anything else the name of a test of ./daemon/engine/sim, or a package and a test of it:
# what the simulator has no part in is found on real clocks and servers.
set -euo pipefail

seeds=${1:-1000}
go=${GO:-go}
shift || true
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The packages that a mutant may be in, as they are now, committed or not.
copy() {
	rm -rf "$work/tree"
	mkdir "$work/tree"
	(cd "$root" && tar -cf - go.mod go.sum bench/faultproxy cache daemon protocol renewer upstream) | tar -xf - -C "$work/tree"
}

# try TEST runs it in the copy. It leaves its output in $work/out.
try() {
	local args=(-count=1 -v -vet=off -trimpath -timeout 30m)
	case $1 in
	seeds) args+=(./daemon/engine/sim -run 'TestSeeds$' -args "-seeds=$seeds" -stop -lines=0) ;;
	./*) args+=("${1% *}" -run "^${1#* }\$" -failfast) ;;
	*) args+=(./daemon/engine/sim -run "$1\$") ;;
	esac
	(cd "$work/tree" && LOCKSIDECAR_TEST_LONG=1 "$go" test "${args[@]}") >"$work/out" 2>&1
}

row() { printf '%-26s %-8s %-46s %7s %6s\n' "$@"; }

survived=0
row mutant verdict "by what" seeds seconds
chosen=("$@")
if ((${#chosen[@]} == 0)); then
	chosen=(none)
	for patch in "$here"/*.patch; do chosen+=("$(basename "$patch" .patch)"); done
fi
for name in "${chosen[@]}"; do
	patch=none
	[[ $name == none ]] || patch=$here/$name.patch
	copy
	test=seeds
	if [[ $patch != none ]]; then
		test=$(sed -n '1s/^# *//p' "$patch")
		if ! (cd "$work/tree" && GIT_CEILING_DIRECTORIES="$work" git apply -p1 "$patch") >"$work/out" 2>&1; then
			row "$name" "NO PATCH" "it does not apply" - -
			cat "$work/out"
			survived=1
			continue
		fi
	fi
	began=$SECONDS
	if try "$test"; then
		by=- verdict="NOT" ran=$seeds
		[[ $patch == none ]] && verdict=clean || survived=1
	else
		# "…: seed 12: two holders: client 3 …"
		hit=$(sed -n 's/^ *[a-z_]*\.go:[0-9]*: \(seed [0-9]*[:,] .*\)/\1/p' "$work/out" | grep -v ' events in \|^seed [0-9]*: [a-z]*, [0-9]* hosts' | head -n 1 || true)
		verdict=caught
		if [[ $test == ./* ]]; then
			hit=$(grep -m 1 "^--- FAIL: ${test#* } " "$work/out" || true)
		fi
		if [[ -z $hit || $patch == none ]]; then
			verdict="NOT"
			survived=1
			tail -n 20 "$work/out"
		fi
		if [[ $test == seeds ]]; then
			ran=$(sed -n 's/^seed \([0-9]*\): .*/\1/p' <<<"$hit")
			by=$(sed -n 's/^seed [0-9]*: \([^:]*\): .*/\1/p' <<<"$hit")
		else
			ran=- by="${test#* }"
		fi
	fi
	row "$name" "$verdict" "$by" "${ran:--}" $((SECONDS - began))
done
exit $survived
