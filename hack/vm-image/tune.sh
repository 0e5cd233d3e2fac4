#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes an unpacked Debian boot fast: hack/vm-image/tune.sh TREE
set -euo pipefail

tree=$1
here=$(dirname "${BASH_SOURCE[0]}")
units=$tree/etc/systemd/system

cp -r --no-preserve=ownership "$here"/overlay/. "$tree"/

# The kernel's command line says that this is the root file system and that it is writable.
: >"$tree/etc/fstab"

# cloud-init checks user data by it if it is there, which the operator has done; loading it
# takes a seventh of cloud-init's start.
rm -rf "$tree/usr/lib/python3/dist-packages/jsonschema"

# What a machine of one job has no use for.
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

# Nothing of the machine's units is made at boot. cloud-init's generator would look for a
# source of data first; here there is always one.
mkdir -p "$tree/etc/systemd/system-generators" "$units/multi-user.target.wants" "$units/sysinit.target.wants"
for generator in "$tree"/lib/systemd/system-generators/*; do
	ln -sfn /dev/null "$tree/etc/systemd/system-generators/${generator##*/}"
done
ln -sfn /lib/systemd/system/cloud-init.target "$units/multi-user.target.wants/cloud-init.target"
ln -sfn /lib/systemd/system/systemd-networkd.service "$units/multi-user.target.wants/systemd-networkd.service"
ln -sfn /etc/systemd/system/hyperfleet-bootstrap.path "$units/sysinit.target.wants/hyperfleet-bootstrap.path"
ln -sfn /lib/systemd/system/multi-user.target "$units/default.target"
