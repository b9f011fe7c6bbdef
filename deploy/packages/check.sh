#!/usr/bin/env bash
# Builds the packages of the tree as it is, committed or not, twice and in
# different circumstances: they have to be the same, byte for byte. Then it uses
# them as strangers do, from a fresh clone, with the daemon that was built.
#
#   deploy/packages/check.sh        PYTHON has the extras test and package
set -euo pipefail

go=${GO:-go} python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
daemon=
finish() {
	[[ -z $daemon ]] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT

fail() {
	echo "packages: $*" >&2
	exit 1
}

# The tree as a repository with one commit.
mkdir "$work/tree"
cd "$root"
git ls-files -z -co --exclude-standard |
	while IFS= read -r -d '' f; do [[ ! -e $f ]] || printf '%s\0' "$f"; done |
	tar -cf - --null -T - | tar -xf - -C "$work/tree"
cd "$work/tree"
git init -q -b main
git add -f .
git -c user.name=check -c user.email= -c commit.gpgsign=false -c core.hooksPath=/dev/null commit -q -m "as it is"

# Twice: another place, time zone (and so another day), language, user, order of
# hashing, and other rights of the files that git makes.
mkdir "$work/a" "$work/a longer name"
(
	umask 022
	export TMPDIR=$work/a TZ=Pacific/Pago_Pago LC_ALL=C USER=ann LOGNAME=ann PYTHONHASHSEED=1
	export JAVA_TOOL_OPTIONS="-Duser.language=en -Duser.country=US"
	deploy/packages/build.sh "$work/first"
) 2> >(grep --line-buffered -v '^Picked up JAVA_TOOL_OPTIONS' >&2)
(
	umask 077
	export TMPDIR="$work/a longer name" TZ=Pacific/Kiritimati LC_ALL=C.UTF-8 USER=bob LOGNAME=bob PYTHONHASHSEED=2
	export JAVA_TOOL_OPTIONS="-Duser.language=tr -Duser.country=TR"
	deploy/packages/build.sh "$work/second"
) 2> >(grep --line-buffered -v '^Picked up JAVA_TOOL_OPTIONS' >&2)
diff -r "$work/first" "$work/second" || fail "built twice, they are not the same"
cd "$work/first"
[[ $(wc -l <SHA256SUMS) == 19 ]] || fail "19 files were to be built: $(ls)"
version=$(<"$work/tree/cmd/locksidecar/VERSION")

# The sdist is enough to make the wheel, and itself.
mkdir "$work/sdist"
tar -xzf locksidecar-*.tar.gz -C "$work/sdist" --strip-components 1
(cd "$work/sdist" && SOURCE_DATE_EPOCH=$(git -C "$work/tree" log -1 --format=%ct) "$python" -m hatchling build -d "$work/again" &>/dev/null)
for f in "$work"/again/*; do
	cmp "$f" "$work/first/${f##*/}" || fail "the sdist makes another ${f##*/}"
done

echo "check.sh: the packages are the same" >&2

# The daemon. It says the version and the commit.
program=$work/first/locksidecar-$version-$("$go" env GOOS)-$("$go" env GOARCH)
said=$("$program" version)
[[ $said == "locksidecar $version ("*", commit $(git -C "$work/tree" rev-parse HEAD))" ]] || fail "the program says $said"
export LOCKSIDECAR_SOCKET=$work/s.sock
"$program" serve 2>"$work/log" &
daemon=$!
until "$program" health -q; do
	kill -0 "$daemon" 2>/dev/null || fail "the daemon ended: $(<"$work/log")"
done

# A stranger with Python, from a fresh clone. No type that this one sees is Any, and all of them are true.
git clone -q "$work/tree" "$work/clone"
"$python" -m venv "$work/venv"
(cd "$work/clone" && "$work/venv/bin/python" -m pip install -q --disable-pip-version-check ./clients/python)
[[ -z $(git -C "$work/clone" status --short --ignored) ]] || fail "pip install leaves $(git -C "$work/clone" status --short --ignored)"
cp "$here/user/user.py" "$work"
cd "$work"
"$python" -m mypy --strict --disallow-any-expr --python-executable "$work/venv/bin/python" --cache-dir=/dev/null --no-error-summary user.py
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$site "$python" -m mypy.stubtest --mypy-config-file "$work/clone/clients/python/pyproject.toml" --concise locksidecar
[[ $("$work/venv/bin/python" -W error user.py) == "${version/-rc./rc}" ]] || fail "the Python client has another version"

# A stranger with Java, whose program is a module.
jar=$work/first/locksidecar-client-$version.jar
javac --release 17 -Xlint:all -Werror -p "$jar" -d "$work/classes" "$here"/user/java/module-info.java "$here"/user/java/user/User.java
[[ $(java -p "$jar:$work/classes" -m user/user.User) == "$version" ]] || fail "the Java client has another version"
echo "the packages are reproducible, and of use"
