#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Tunes an unpacked Debian for boot speed: hack/vm-image/tune.sh TREE
set -euo pipefail

tree=$1
here=$(dirname "${BASH_SOURCE[0]}")
units=$tree/etc/systemd/system

cp -r --no-preserve=ownership "$here"/overlay/. "$tree"/

# The kernel arguments configure the root file system, so that fstab can be empty.
: >"$tree/etc/fstab"

# Remove jsonschema, with which cloud-init would validate the user data. The operator has already validated it, and
# loading jsonschema takes one seventh of cloud-init's start time.
rm -rf "$tree/usr/lib/python3/dist-packages/jsonschema"

# Mask units that a machine for one job does not need.
for unit in \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
	systemd-tmpfiles-clean.timer getty.target getty@tty1.service console-getty.service \
	systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-pstore.service systemd-firstboot.service \
	systemd-journal-flush.service systemd-journald-audit.socket systemd-update-utmp.service \
	systemd-update-utmp-runlevel.service systemd-machine-id-commit.service systemd-repart.service \
	systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-modules-load.service systemd-sysusers.service \
	cryptsetup.target integritysetup.target veritysetup.target remote-fs.target \
	systemd-ask-password-console.path systemd-ask-password-wall.path systemd-initctl.socket \
	dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount sys-kernel-config.mount \
	sys-kernel-debug.mount sys-kernel-tracing.mount kmod-static-nodes.service cloud-init-hotplugd.socket; do
	ln -sfn /dev/null "$units/$unit"
done

# Mask all generators and create their units here. The generator of cloud-init would search for a data source, but
# these machines always have one.
mkdir -p "$tree/etc/systemd/system-generators" "$units/multi-user.target.wants" "$units/sysinit.target.wants"
for generator in "$tree"/lib/systemd/system-generators/*; do
	ln -sfn /dev/null "$tree/etc/systemd/system-generators/${generator##*/}"
done
ln -sfn /lib/systemd/system/cloud-init.target "$units/multi-user.target.wants/cloud-init.target"
ln -sfn /lib/systemd/system/systemd-networkd.service "$units/multi-user.target.wants/systemd-networkd.service"
ln -sfn /etc/systemd/system/hyperfleet-bootstrap.path "$units/sysinit.target.wants/hyperfleet-bootstrap.path"
ln -sfn /lib/systemd/system/multi-user.target "$units/default.target"
