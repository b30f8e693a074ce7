#!/bin/sh
# Takes out of the tree ($1) what must not be the same in two slivers, and what only the build needed.
set -eu
root=$1

# Identity: made anew by whoever starts a sliver.
rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub "$root"/var/lib/dbus/machine-id
: >"$root/etc/machine-id"
rm -f "$root"/var/lib/systemd/random-seed "$root"/var/lib/systemd/credential.secret

# The build host's mirror, proxy and path filters.
rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/dpkg/dpkg.cfg.d/99mmdebstrap "$root"/etc/apt/sources.list

# Second names of the only kernel, backups, logs of the build.
rm -f "$root"/vmlinuz.old "$root"/initrd.img.old "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- \
    "$root"/etc/gshadow- "$root"/var/lib/dpkg/status-old "$root"/var/lib/dpkg/available-old
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/debconf/*-old "$root"/var/cache/ldconfig/*
find "$root/var/log" -type f ! -name 'README*' -exec truncate -s 0 {} +

# Experiments are not to be disturbed by package work in the background.
systemctl --root="$root" disable --quiet apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service
# netplan writes for networkd
[ ! -e "$root/usr/sbin/netplan" ] || systemctl --root="$root" enable --quiet systemd-networkd.service
