#!/bin/bash
set -euo pipefail
umask 077
DEST='/etc/systemd/system/hyperfleet-firewall.service'
MODE='0644'
OWNER='root:root'
SHA256='383bb21983b6fb520ed55b16bac7421ca9c86134a5133170573c3fe7d733d4c4'

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
