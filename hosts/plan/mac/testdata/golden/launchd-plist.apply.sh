#!/bin/bash
set -euo pipefail
umask 077
DEST='/Library/LaunchAgents/io.hyperfleet.tart-kubelet.plist'
MODE='0644'
OWNER='root:wheel'
SHA256='f89752cd780c9f2d67c0673a28a1f2bd670a0593ad031d12586b63d5b6704e6e'

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
