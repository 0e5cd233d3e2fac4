#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates the initrd for an unpacked Debian: hack/vm-image/initrd.sh TREE FILE
set -euo pipefail

tree=$1 file=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Drivers for disks, and drivers that can be loaded while the disk is mounted.
disk=(virtio_pci virtio_scsi sd_mod virtio_blk)
rest=(ata_piix sr_mod isofs virtio_net virtio_console)

work=$(mktemp -d "$tree/tmp/initrd.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,dev,proc,root,modules}
cp "$tree/bin/busybox" "$work/bin/"
cp "$here/init" "$work/init"

modules=$(echo "$tree"/lib/modules/*)

# copy_modules copies drivers and the modules on which they depend, and prints their file names in loading order.
copy_modules() {
	local driver line path
	for driver in "$@"; do
		# A driver without a line is built into the kernel. The deepest dependency is last in the line.
		line=$(grep -E "/$driver\.ko[^:]*:" "$modules/modules.dep") || continue
		# shellcheck disable=SC2086 # a list of words
		printf '%s\n' ${line/:/} | tac
	done | awk '!seen[$0]++' | while read -r path; do
		cp "$modules/$path" "$work/modules/"
		echo "${path##*/}"
	done
}
copy_modules "${disk[@]}" >"$work/disk"
copy_modules "${rest[@]}" | grep -vxFf "$work/disk" >"$work/rest"
mv "$work/disk" "$work/rest" "$work/modules/"

chroot "$tree" sh -c 'cd "$1" && find . -mindepth 1 | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0' sh "/tmp/${work##*/}" >"$file"
