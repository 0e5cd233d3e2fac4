#!/bin/bash
set -euo pipefail
umask 077
NAME='mac-1'

main() {
	local kind
	for kind in HostName LocalHostName ComputerName; do
		scutil --set "$kind" "${NAME//./-}"
	done
	pmset -a sleep 0 disksleep 0 displaysleep 0 autorestart 1
}

main; exit 0
