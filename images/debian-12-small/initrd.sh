#!/bin/sh
# Gives the tree ($1) an initrd that knows virtio and ext4 alone. A thin kernel needs none.
set -eu
root=$1

[ -e "$root/vmlinuz" ] || exit 0
version=$(basename "$root"/boot/vmlinuz-*)
version=${version#vmlinuz-}
work=$root/tmp/initrd
mkdir -p "$work/bin" "$work/modules" "$work/proc" "$work/sys" "$work/dev" "$work/root"
cp "$root/bin/busybox" "$work/bin/busybox"
cp "$(dirname "$0")/initrd/init" "$work/init"
chmod 755 "$work/init"
number=100
for module in virtio_pci virtio_blk virtio_net virtio_console virtio_balloon virtio-rng button evdev ext4 vfat nls_cp437 nls_ascii; do
    chroot "$root" modprobe --set-version "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    number=$((number + 1))
    cp "$root$file" "$work/modules/$number.ko"
done
chroot "$root" sh -c 'cd /tmp/initrd && busybox find . | busybox cpio -o -H newc 2>/dev/null' |
    gzip -1 >"$root/boot/initrd.img-$version"
rm -rf "$work"
