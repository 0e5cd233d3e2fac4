#!/bin/sh
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prepares a Debian or Ubuntu cloud image for HyperFleet's machines. Run the script inside the image: with
# virt-customize --run, in a chroot, or in a VM that becomes a template. It installs the files in the folder
# /opt/hyperfleet-setup, and then deletes the folder:
#
#   bootstrap-service      HyperFleet's program in the machine (required)
#   spire-agent            for templates with attestation
#   actions-runner.tar.gz  GitHub's runner, so that machines do not have to download it
#   packages               names of additional Debian packages, one for each line
set -eu

setup=/opt/hyperfleet-setup
unit=hyperfleet-bootstrap
export DEBIAN_FRONTEND=noninteractive

if [ ! -f "$setup/bootstrap-service" ]; then
	echo "customize: $setup/bootstrap-service is missing: copy HyperFleet's bootstrap service to this path" >&2
	exit 1
fi

# The guest agent reports addresses to Proxmox VE and shuts down the machine cleanly. cloud-init needs netplan to match
# network cards by a pattern.
packages="qemu-guest-agent cloud-init netplan.io cloud-guest-utils ca-certificates curl"
if [ -f "$setup/packages" ]; then
	packages="$packages $(tr '\n' ' ' <"$setup/packages")"
fi
apt-get update
# shellcheck disable=SC2086 # split into words
apt-get install -y --no-install-recommends $packages

mkdir -p /opt/hyperfleet
install -m 0755 "$setup/bootstrap-service" /opt/hyperfleet/bootstrap-service
if [ -f "$setup/spire-agent" ]; then
	mkdir -p /opt/spire/bin
	install -m 0755 "$setup/spire-agent" /opt/spire/bin/spire-agent
	# Check that spire-agent runs in this image. Otherwise, each machine would fail.
	/opt/spire/bin/spire-agent --version
fi

# Jobs run as this user if it exists. It has no password and no sudo.
if ! id runner >/dev/null 2>&1; then
	useradd --create-home --shell /bin/bash runner
fi
if [ -f "$setup/actions-runner.tar.gz" ]; then
	mkdir -p /opt/actions-runner
	tar -xzf "$setup/actions-runner.tar.gz" -C /opt/actions-runner
	/opt/actions-runner/bin/installdependencies.sh
	chown -R runner:runner /opt/actions-runner
fi

# cloud-init starts the service in its last stage. The path unit starts it earlier, as soon as the start file exists. The
# operator creates this file if the job does not have to wait for your user data.
cat >/etc/systemd/system/$unit.service <<'UNIT'
[Unit]
Description=HyperFleet bootstrap service
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=/opt/hyperfleet/bootstrap-service --config /etc/hyperfleet/runner-config.json
Restart=no
KillMode=mixed
TimeoutStopSec=60
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
UNIT
cat >/etc/systemd/system/$unit.path <<'UNIT'
[Unit]
Description=Start of the HyperFleet bootstrap service

[Path]
PathExists=/run/hyperfleet/start

[Install]
WantedBy=paths.target
UNIT
systemctl enable $unit.path

# Use only the cloud-init ISO that the operator attaches as a data source, and no data source on the network.
mkdir -p /etc/cloud/cloud.cfg.d
printf 'datasource_list: [NoCloud, ConfigDrive]\n' >/etc/cloud/cloud.cfg.d/90-hyperfleet.cfg

# Disable maintenance, because a machine runs only one job.
systemctl mask apt-daily.timer apt-daily-upgrade.timer

# Delete files that must differ between clones, and files that are not needed.
apt-get clean
rm -rf /var/lib/apt/lists/*
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /var/lib/systemd/random-seed
rm -f /etc/netplan/50-cloud-init.yaml /etc/udev/rules.d/70-persistent-net.rules
cloud-init clean --logs
: >/etc/machine-id
# The files of other logs stay, because some programs write only to existing files.
rm -rf /var/log/journal/*
find /var/log -type f -exec truncate -s 0 {} +
rm -rf "$setup"
