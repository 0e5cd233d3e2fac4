#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs the DPU's system on its disk, with the ignition of its cluster, and has the
# firmware start it from now on. Runs in the live system, once.
set -euo pipefail
device=${HYPERFLEET_DEVICE:-/dev/nvme0n1}
flavor=/etc/dpf/dpuflavor.json

say() { echo "hyperfleet-install: $*" | tee /dev/kmsg; }
trap 'say "failed at line $LINENO: see journalctl -u hyperfleet-install"' ERR

[ -b "$device" ] || {
	say "there is no disk $device"
	exit 1
}

# What DPF has filled in for this DPU goes to the installed system.
jq --arg host "data:;base64,$(base64 -w0 /etc/hostname)" --arg dpu "data:;base64,$(base64 -w0 /etc/dpf/environment)" \
	'.storage.files += [
		{path: "/etc/hostname", mode: 420, overwrite: true, contents: {source: $host}},
		{path: "/etc/dpf/environment", mode: 420, overwrite: true, contents: {source: $dpu}}
	]' /var/target.ign >/run/target.ign

arguments=(--append-karg console=hvc0 --append-karg console=ttyAMA0)
while IFS= read -r argument; do
	arguments+=(--append-karg "$argument")
done < <(jq -r '.spec.grub.kernelParameters[]?' "$flavor")

say "installing on $device"
coreos-installer install "$device" --offline --ignition-file /run/target.ign "${arguments[@]}"

label="Red Hat CoreOS"
efibootmgr | sed -n "s/^Boot\([0-9A-F]\{4\}\)\*\{0,1\} $label.*/\1/p" | while read -r old; do
	efibootmgr -q -b "$old" -B
done
efibootmgr -q -c -d "$device" -p 2 -l '\EFI\redhat\shimaa64.efi' -L "$label"
sync
say "installed; restarting"
