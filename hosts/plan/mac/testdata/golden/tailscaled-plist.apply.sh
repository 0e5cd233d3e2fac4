#!/bin/bash
set -euo pipefail
umask 077
DEST='/Library/LaunchDaemons/io.hyperfleet.tailscaled.plist'
MODE='0644'
OWNER='root:wheel'
SHA256='60cb26dd0a1d736934c3f6d2372f4c3cbcf502811551285baebf594c73846274'

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
