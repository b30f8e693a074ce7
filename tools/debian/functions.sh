# Of the maintainer scripts below: tools/deb.py writes this text at their beginning.
set -eu
marks=${DPKG_ROOT:-}/run/slicemgr-upgrade
service_units='slicemgr-web.service slicemgr-signer.service slicemgr-hub.service'
node_units='slicemgr-agent.service slicemgr-link.service'
units="$service_units $node_units"

systemd_runs() {
    [ -d "${DPKG_ROOT:-}/run/systemd/system" ]
}

# Stop units for an upgrade. Slivers are processes of libvirt and keep running.
stop_for_upgrade() {
    systemd_runs || return 0
    for unit in "$@"; do
        if systemctl --quiet is-active "$unit"; then
            mkdir -p "$marks"
            touch "$marks/$unit"
            systemctl stop "$unit"
        fi
    done
}

# Start the units that the upgrade stopped.
start_after_upgrade() {
    systemd_runs || return 0
    systemctl daemon-reload
    for unit in "$@"; do
        if [ -e "$marks/$unit" ]; then
            rm "$marks/$unit"
            systemctl start "$unit" || echo "slicemgr: $unit does not start: see journalctl -u $unit" >&2
        fi
    done
    rmdir "$marks" 2>/dev/null || true
}

# A removal keeps slivers, their rules and all data; a purge deletes them. apt always removes first, without a word of the
# purge that follows, so a removal keeps the program, as hard links where possible.
kept=${DPKG_ROOT:-}/var/lib/slicemgr/removed

keep_program() {
    rm -rf "$kept"
    mkdir -p "${kept%/*}"
    mkdir -m 700 "$kept"
    cp -al "${DPKG_ROOT:-}/usr/lib/slicemgr/." "$kept" 2>/dev/null || cp -a "${DPKG_ROOT:-}/usr/lib/slicemgr/." "$kept"
    cp "${DPKG_ROOT:-}/etc/slicemgr/slicemgr.toml" "$kept/slicemgr.toml"
}

delete_slivers() {
    [ -e "$kept/slicemgr.toml" ] || return 0
    "$kept/bin/python3" "$kept/bin/slicemgr" --config "$kept/slicemgr.toml" uninstall --slivers ||
        echo "slicemgr: something remains: see the lines above" >&2
    rm -rf "$kept"
}

remove_user() {
    if [ -z "${DPKG_ROOT:-}" ] && getent passwd "$1" >/dev/null; then
        userdel "$1" || echo "slicemgr: the user $1 remains" >&2
    fi
}
