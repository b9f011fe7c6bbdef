#!/bin/sh
# mysql.sh DIR puts a MySQL server into DIR and prints the path of its mysqld. Debian's releases have
# only MariaDB, so it comes from the unstable suite. Nothing is installed: the server runs with the
# libraries of that suite from DIR. It downloads about 80 MB and uses 350 MB in DIR.
set -eu
mkdir -p "$1"
dir=$(cd "$1" && pwd)
if [ -x "$dir/mysqld" ]; then
	echo "$dir/mysqld"
	exit
fi
site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n 1)
if [ -z "$site" ]; then
	echo "mysql.sh: apt-get knows no mirror of Debian (run apt-get update first)" >&2
	exit 1
fi
mkdir -p "$dir/lists/partial" "$dir/archives/partial" "$dir/root"
: >"$dir/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" >"$dir/sources.list"
cat >"$dir/apt.conf" <<END
Dir::State "$dir";
Dir::State::status "$dir/status";
Dir::Cache "$dir";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
END
export APT_CONFIG="$dir/apt.conf"
apt-get update -q >&2
apt-get install -qy --no-install-recommends --download-only mysql-server-core >&2
for deb in "$dir"/archives/*.deb; do
	case $deb in
	*/perl* | */libperl*) ;; # only needed by scripts
	*) dpkg -x "$deb" "$dir/root" ;;
	esac
done
rm -rf "$dir/archives" "$dir/lists"
loader=$(ls "$dir"/root/usr/lib64/ld-linux-*.so.* "$dir"/root/usr/lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
libs=$(dirname "$(ls "$dir"/root/usr/lib/*/libc.so.6)")
cat >"$dir/mysqld.new" <<END
#!/bin/sh
exec $loader --library-path $libs $dir/root/usr/sbin/mysqld "\$@"
END
chmod +x "$dir/mysqld.new"
mv "$dir/mysqld.new" "$dir/mysqld"
echo "$dir/mysqld"
