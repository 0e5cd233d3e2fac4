#!/bin/bash
set -euo pipefail
umask 077
DEST='/etc/systemd/system/hyperfleet-tailscaled.service'
MODE='0644'
OWNER='root:root'
SHA256='293a4f7acb30d7f46f9d76b98dd5070fdb4851c8b13158554cfc5838b7c29eb9'

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
		echo "the checksum of the input for $DEST does not match: push it again" >&2
		exit 1
	fi
	chown "$OWNER" "$temp"
	chmod "$MODE" "$temp"
	mv -f "$temp" "$DEST"
}

main; exit 0
