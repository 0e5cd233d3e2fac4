#!/bin/bash
set -euo pipefail
umask 077
NAME='mac-1'

# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Sets the host's name, disables sleep, and makes the host restart after a power failure.
main() {
	local kind
	for kind in HostName LocalHostName ComputerName; do
		# Host names in the local network must not contain dots.
		scutil --set "$kind" "${NAME//./-}"
	done
	pmset -a sleep 0 disksleep 0 displaysleep 0 autorestart 1
}

main; exit 0
