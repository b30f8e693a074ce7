#!/bin/sh
# Takes out of the tree ($1) what only the build needed.
set -eu
root=$1

rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub "$root"/var/lib/systemd/random-seed
: >"$root/etc/machine-id"
rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$root"/etc/apt/sources.list
rm -f "$root"/vmlinuz.old "$root"/initrd.img.old
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
chmod 755 "$root/usr/sbin/init" "$root/etc/acpi/PWRF/00000080"
