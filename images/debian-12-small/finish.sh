#!/bin/sh
# Takes out of the tree ($1) what only the build needed, and gives it an initrd that knows virtio and ext4 alone.
set -eu
root=$1

rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub "$root"/var/lib/systemd/random-seed
: >"$root/etc/machine-id"
rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$root"/etc/apt/sources.list
rm -f "$root"/vmlinuz.old "$root"/initrd.img.old
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
chmod 755 "$root/usr/sbin/init" "$root/etc/acpi/PWRF/00000080"

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
