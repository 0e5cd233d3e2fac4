#!/bin/bash
set -euo pipefail
umask 077
DEST='/etc/hyperfleet/kubeconfig'
MODE='0600'
OWNER='root:root'
END='--- end of input ---'

temp=
main() {
	local dir
	dir=$(dirname "$DEST")
	(umask 022 && mkdir -p "$dir")
	temp=$(mktemp "$dir/.hyperfleet.XXXXXX")
	trap 'rm -f "$temp" "$temp.whole"' EXIT
	cat >"$temp"
	if [ "$(tail -n 1 "$temp")" != "$END" ]; then
		echo "the input for $DEST was truncated: push it again" >&2
		exit 1
	fi
	sed '$d' "$temp" >"$temp.whole"
	chown "$OWNER" "$temp.whole"
	chmod "$MODE" "$temp.whole"
	mv -f "$temp.whole" "$DEST"
}

main; exit 0
