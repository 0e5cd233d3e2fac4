#!/bin/bash
set -euo pipefail
umask 077
DEST='/usr/local/libexec/hyperfleet/firewall'
MODE='0755'
OWNER='root:wheel'
SHA256='294d0f08d08931fde76ed1e372cdb2726546c2ff5d21b7a65915d8bdf6c585ac'

# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Puts what it reads at DEST, whole or not at all.
temp=

main() {
	local dir sum
	dir=$(dirname "$DEST")
	(umask 022 && mkdir -p "$dir")
	temp=$(mktemp "$dir/.hyperfleet.XXXXXX")
	trap 'rm -f "$temp"' EXIT

	cat >"$temp"
	sum=$(sha256sum <"$temp" 2>/dev/null || shasum -a 256 <"$temp")
	if [ "${sum%% *}" != "$SHA256" ]; then
		echo "what arrived for $DEST is not what was sent: push it again" >&2
		exit 1
	fi

	chown "$OWNER" "$temp"
	chmod "$MODE" "$temp"
	mv -f "$temp" "$DEST"
}

main; exit 0
