# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes the secret on standard input to DEST, completely or not at all. Until the file has its
# owner, only root can read it.
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
