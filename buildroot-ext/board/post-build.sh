#!/bin/sh
# Called by Buildroot with the target folder when all packages are in, before the overlay's owner is settled.
set -eu
target=$1
board=$2

# The overlay's init scripts start every service; those that packages bring would start them twice.
for script in "$target"/etc/init.d/S??*; do
	[ -e "$board/overlay/etc/init.d/${script##*/}" ] || rm -f "$script"
done

# Mount points, and what lives on the data partition.
for folder in boot/env data home mnt opt rom var/empty; do
	mkdir -p "$target/$folder"
done
link() {
	rm -rf "${target:?}/$1"
	ln -s "$2" "$target/$1"
}
link etc/resolv.conf /run/resolv.conf
link opt/k1 /data/opt/k1
link var/log /data/log

# os-release(5), as Buildroot has just written it, and a hash of all the other files.
release=$target/usr/lib/os-release # to which etc/os-release leads; older ones have the file itself there
[ -f "$release" ] || release=$target/etc/os-release
hash=$(cd "$target" && find . -type f ! -name os-release -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
sed -i '/^IMAGE_/d' "$release"
printf 'IMAGE_ID=k1-%s\nIMAGE_VERSION=%.16s\n' "${board##*/}" "$hash" >>"$release"
