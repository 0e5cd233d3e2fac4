#!/bin/bash
set -euo pipefail
umask 077
NAME='mac-1'

# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Gives the host its name, and keeps it awake and coming back after a power cut.
main() {
	local kind
	for kind in HostName LocalHostName ComputerName; do
		# A name in the local network has no dots.
		scutil --set "$kind" "${NAME//./-}"
	done
	pmset -a sleep 0 disksleep 0 displaysleep 0 autorestart 1
}

main; exit 0
