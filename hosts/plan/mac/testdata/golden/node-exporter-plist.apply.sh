#!/bin/bash
set -euo pipefail
umask 077
DEST='/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist'
MODE='0644'
OWNER='root:wheel'
SHA256='4f43b1ad3a3c9cfee3ce887f0a30ce6e67fff7348252cbde57bf700f63e70090'

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
