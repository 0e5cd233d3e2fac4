#!/bin/bash
set -euo pipefail
umask 077
DEST='/Library/LaunchDaemons/io.hyperfleet.vmnat.plist'
MODE='0644'
OWNER='root:wheel'
SHA256='1d24b5a4cc5f0b32c0ed43ff5c8c6e2f20d6962bc144b9778e6f060d14e8af2a'

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
