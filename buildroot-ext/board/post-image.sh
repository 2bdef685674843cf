#!/bin/sh
# Called by Buildroot with the folder of images, which has rootfs.squashfs and uboot.env.txt: makes sdcard.img.
set -eu
images=$1
board=$2
# shellcheck source=/dev/null
. "$board/card.conf"
: "${SOURCE_DATE_EPOCH:=1767225600}"
export SOURCE_DATE_EPOCH

# Two copies of the environment that is compiled into U-Boot, the same bytes each time.
for name in uboot.env uboot-redund.env; do
	mkenvimage -r -s 0x4000 -o "$images/$name" "$images/uboot.env.txt"
	touch -d "@$SOURCE_DATE_EPOCH" "$images/$name"
done
rm -f "$images/env.vfat" "$images/data.ext4"
truncate -s "${ENV_MIB}M" "$images/env.vfat"
mkfs.vfat --invariant -F 16 -s 1 -n K1ENV -i 4b31454e "$images/env.vfat" >/dev/null
TZ=UTC mcopy -m -i "$images/env.vfat" "$images/uboot.env" "$images/uboot-redund.env" ::

# data grows to the end of the card at the first boot.
truncate -s "${DATA_MIB}M" "$images/data.ext4"
extended="hash_seed=$DATA_FS_UUID,lazy_itable_init=1,assume_storage_prezeroed=1,root_owner=0:0"
E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH mke2fs -q -F -t ext4 -b 4096 -I 256 -i 16384 -m 1 -L k1-data \
	-U "$DATA_FS_UUID" -E "$extended" "$images/data.ext4"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
genimage --config "$board/genimage.cfg" --rootpath "$work/root" --tmppath "$work/tmp" \
	--inputpath "$images" --outputpath "$images"
