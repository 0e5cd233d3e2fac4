#!/bin/bash
set -euo pipefail
umask 077
DEST='/etc/hyperfleet/egress.nft'
MODE='0644'
OWNER='root:root'
SHA256='1fd60c24d032d1a35cc23b6fff5549a5d03f6da7d5b4289234fb13c2122d523a'

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
