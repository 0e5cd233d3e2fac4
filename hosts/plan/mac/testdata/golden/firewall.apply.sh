#!/bin/bash
set -euo pipefail
umask 077
ANCHOR='com.apple/000.hyperfleet.egress'
RULES='/etc/pf.anchors/hyperfleet.egress'
CONF='/etc/pf.conf'
LOADER='/usr/local/libexec/hyperfleet/firewall'

BEGIN='# BEGIN hyperfleet'
FINISH='# END hyperfleet'
temp=
main() {
	if ! pfctl -q -n -a "$ANCHOR" -f "$RULES"; then
		echo "pf rejects $RULES: nothing was changed" >&2
		exit 1
	fi
	temp=$(mktemp "$CONF.XXXXXX")
	trap 'rm -f "$temp"' EXIT
	if [ "$(grep -cxF "$BEGIN" "$CONF" || true)" != "$(grep -cxF "$FINISH" "$CONF" || true)" ]; then
		echo "$CONF has one of the lines \"$BEGIN\" and \"$FINISH\" without the other: fix it by hand" >&2
		exit 1
	fi
	awk -v begin="$BEGIN" -v finish="$FINISH" '
		$0 == begin { ours = 1 }
		!ours { print }
		$0 == finish { ours = 0 }' "$CONF" >"$temp"
	printf '%s\nload anchor "%s" from "%s"\n%s\n' "$BEGIN" "$ANCHOR" "$RULES" "$FINISH" >>"$temp"
	if ! pfctl -q -n -f "$temp"; then
		echo "pf rejects $CONF with the hyperfleet block: nothing was changed" >&2
		exit 1
	fi
	if ! cmp -s "$temp" "$CONF"; then
		chown root:wheel "$temp"
		chmod 0644 "$temp"
		mv -f "$temp" "$CONF"
	fi
	"$LOADER"
	if [ -z "$(pfctl -q -a "$ANCHOR" -s rules)" ]; then
		echo "the anchor $ANCHOR is empty after it was loaded: machines would reach everything" >&2
		exit 1
	fi
}

main; exit 0
