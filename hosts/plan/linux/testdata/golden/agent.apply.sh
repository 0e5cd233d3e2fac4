#!/bin/bash
set -euo pipefail
umask 077
DEST='/usr/local/bin/hyperfleet-agent'
MODE='0755'
OWNER='root:root'
SHA256='a04f560d4d61e9829da24045c7dfb7c67ea53ecadc77f7ded2e722114fd2b9b1'

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
