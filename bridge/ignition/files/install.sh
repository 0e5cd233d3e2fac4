#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# This script runs once in the live system. It installs the DPU's operating system on its disk, with the
# ignition of its cluster, and sets the installed system as the firmware's boot entry.
set -euo pipefail
device=${HYPERFLEET_DEVICE:-/dev/nvme0n1}
flavor=/etc/dpf/dpuflavor.json

log() { echo "hyperfleet-install: $*" | tee /dev/kmsg; }
trap 'log "failed at line $LINENO: see journalctl -u hyperfleet-install"' ERR

[ -b "$device" ] || {
	log "disk $device does not exist"
	exit 1
}

# Copy the values that DPF rendered for this DPU to the installed system.
jq --arg host "data:;base64,$(base64 -w0 /etc/hostname)" --arg dpu "data:;base64,$(base64 -w0 /etc/dpf/environment)" \
	'.storage.files += [
		{path: "/etc/hostname", mode: 420, overwrite: true, contents: {source: $host}},
		{path: "/etc/dpf/environment", mode: 420, overwrite: true, contents: {source: $dpu}}
	]' /var/target.ign >/run/target.ign

arguments=(--append-karg console=hvc0 --append-karg console=ttyAMA0)
while IFS= read -r argument; do
	arguments+=(--append-karg "$argument")
done < <(jq -r '.spec.grub.kernelParameters[]?' "$flavor")

log "installing on $device"
coreos-installer install "$device" --offline --ignition-file /run/target.ign "${arguments[@]}"

label="Red Hat CoreOS"
efibootmgr | sed -n "s/^Boot\([0-9A-F]\{4\}\)\*\{0,1\} $label.*/\1/p" | while read -r old; do
	efibootmgr -q -b "$old" -B
done
efibootmgr -q -c -d "$device" -p 2 -l '\EFI\redhat\shimaa64.efi' -L "$label"
sync
log "installed, restarting"
