#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates a template for HyperFleet's machines from a cloud image, on a node of Proxmox VE:
#
#   make-template.sh --image FILE --bootstrap-service FILE [--spire-agent FILE]
#       [--runner FILE] [--packages a,b,c] [--id 9000] [--name NAME] [--storage local-lvm]
#       [--bridge vmbr0]
#
# --image              a cloud image of Debian 12 or Ubuntu, qcow2 or raw; the script does not change it
# --bootstrap-service  HyperFleet's program in the machine
# --spire-agent        for templates with attestation
# --runner             actions-runner-linux-x64-VERSION.tar.gz from GitHub's releases
# --packages           additional Debian packages that your jobs need
#
# The script needs virt-customize (apt install libguestfs-tools). It has no options for processors, memory and disk size,
# because a HypervisorMachineTemplate sets them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
id=9000 name=debian-12-runner storage=local-lvm bridge=vmbr0
image='' service='' agent='' runner='' packages=''

fail() {
	echo "make-template: $*" >&2
	exit 1
}

while [ $# -gt 0 ]; do
	option=$1
	[ $# -ge 2 ] || fail "$option needs a value"
	case $option in
	--image) image=$2 ;;
	--bootstrap-service) service=$2 ;;
	--spire-agent) agent=$2 ;;
	--runner) runner=$2 ;;
	--packages) packages=$2 ;;
	--id) id=$2 ;;
	--name) name=$2 ;;
	--storage) storage=$2 ;;
	--bridge) bridge=$2 ;;
	*) fail "unknown option $option" ;;
	esac
	shift 2
done

[ -n "$image" ] || fail "--image is missing"
[ -n "$service" ] || fail "--bootstrap-service is missing"
for file in "$image" "$service" ${agent:+"$agent"} ${runner:+"$runner"}; do
	[ -f "$file" ] || fail "file $file does not exist"
done
for program in virt-customize qemu-img qm; do
	command -v "$program" >/dev/null || fail "$program is missing: run this script on a node of Proxmox VE, after apt install libguestfs-tools"
done
if qm status "$id" >/dev/null 2>&1; then
	fail "VM $id already exists: choose another --id"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "make-template: customizing a copy of $image"
qemu-img convert -O qcow2 "$image" "$work/disk.qcow2"
mkdir "$work/hyperfleet-setup"
cp "$service" "$work/hyperfleet-setup/bootstrap-service"
if [ -n "$agent" ]; then cp "$agent" "$work/hyperfleet-setup/spire-agent"; fi
if [ -n "$runner" ]; then cp "$runner" "$work/hyperfleet-setup/actions-runner.tar.gz"; fi
if [ -n "$packages" ]; then tr ',' '\n' <<<"$packages" >"$work/hyperfleet-setup/packages"; fi
virt-customize -a "$work/disk.qcow2" --copy-in "$work/hyperfleet-setup:/opt" --run "$here/customize.sh"

echo "make-template: creating VM $id"
qm create "$id" --name "$name" --ostype l26 --cpu host --cores 2 --memory 4096 \
	--scsihw virtio-scsi-single --net0 "virtio,bridge=$bridge" --serial0 socket --vga serial0 --agent 1
qm set "$id" --scsi0 "$storage:0,import-from=$work/disk.qcow2,discard=on"
qm set "$id" --boot order=scsi0
qm template "$id"
echo "make-template: template $id ($name) is ready"
