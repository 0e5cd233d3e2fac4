#!/bin/sh
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes a Debian or Ubuntu cloud image fit for HyperFleet's machines. It runs inside of the
# image: by virt-customize --run, in a chroot, or in a VM that is to become a template.
# What it installs lies beside it in the folder /opt/hyperfleet-setup, which it removes:
#
#   bootstrap-service      HyperFleet's program in the machine; needed
#   spire-agent            for templates with an attestation
#   actions-runner.tar.gz  GitHub's runner, so that jobs start without its download
#   packages               names of more Debian packages, one per line
set -eu

setup=/opt/hyperfleet-setup
unit=hyperfleet-bootstrap
export DEBIAN_FRONTEND=noninteractive

if [ ! -f "$setup/bootstrap-service" ]; then
	echo "customize: $setup/bootstrap-service is missing: put HyperFleet's bootstrap service there" >&2
	exit 1
fi

# The guest agent tells Proxmox VE of addresses and shuts the machine down in good order;
# netplan is what cloud-init can match network cards by pattern with.
packages="qemu-guest-agent cloud-init netplan.io cloud-guest-utils ca-certificates curl"
if [ -f "$setup/packages" ]; then
	packages="$packages $(tr '\n' ' ' <"$setup/packages")"
fi
apt-get update
# shellcheck disable=SC2086 # a list of words
apt-get install -y --no-install-recommends $packages

mkdir -p /opt/hyperfleet
install -m 0755 "$setup/bootstrap-service" /opt/hyperfleet/bootstrap-service
if [ -f "$setup/spire-agent" ]; then
	mkdir -p /opt/spire/bin
	install -m 0755 "$setup/spire-agent" /opt/spire/bin/spire-agent
	# One that does not run here would end each machine.
	/opt/spire/bin/spire-agent --version
fi

# Jobs run as this user where there is one. It has no password and no sudo.
if ! id runner >/dev/null 2>&1; then
	useradd --create-home --shell /bin/bash runner
fi
if [ -f "$setup/actions-runner.tar.gz" ]; then
	mkdir -p /opt/actions-runner
	tar -xzf "$setup/actions-runner.tar.gz" -C /opt/actions-runner
	/opt/actions-runner/bin/installdependencies.sh
	chown -R runner:runner /opt/actions-runner
fi

# cloud-init starts the service in its last stage; the path unit does so as soon as the
# operator says that nothing of your user data has to be waited for.
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
Description=HyperFleet bootstrap service, as soon as it may start

[Path]
PathExists=/run/hyperfleet/start

[Install]
WantedBy=paths.target
UNIT
systemctl enable $unit.path

# Only the cloud-init ISO that the operator attaches is looked for; nothing is asked of the network.
mkdir -p /etc/cloud/cloud.cfg.d
printf 'datasource_list: [NoCloud, ConfigDrive]\n' >/etc/cloud/cloud.cfg.d/90-hyperfleet.cfg

# Machines of one job need no maintenance while it runs.
systemctl mask apt-daily.timer apt-daily-upgrade.timer

# What clones must not have in common, and what nobody needs.
apt-get clean
rm -rf /var/lib/apt/lists/*
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /var/lib/systemd/random-seed
cloud-init clean --logs
: >/etc/machine-id
rm -rf "$setup"
