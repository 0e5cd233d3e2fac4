# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Says which macOS the host has, and does one step of an update to the version WANTED. What is
# read, for an installation, is the password of OWNER, who owns the host's volumes: Apple silicon
# asks for it. How softwareupdate ends says nothing (it ends well where it did not install), so
# that what it printed counts, and after a restart the version.
RUN=/var/run/hyperfleet.macos-update

version() { sw_vers -productVersion </dev/null; }

# reached says whether the version $1 is WANTED or later.
reached() {
	awk -v has="$1" -v want="$WANTED" 'BEGIN {
		split(has, a, "."); split(want, b, ".")
		for (i = 1; i <= 3; i++) if (a[i] + 0 != b[i] + 0) exit (a[i] + 0 < b[i] + 0)
	}'
}

# listed prints, of a list of updates, the label of macOS in the version WANTED, or else, with
# "versions", those that there are.
listed() {
	awk -v want="$WANTED" -v what="$1" '
		sub(/^[ \t]*[*-][ \t]*Label: /, "") { label = $0; next }
		label != "" && /Title: macOS/ {
			version = $0; sub(/.*Version: /, "", version); sub(/,.*/, "", version)
			if (what == "versions") printf " %s", version
			else if (version == want) { print label; exit }
		}
		/Title:/ { label = "" }' "$2"
}

offer() {
	local label list
	list=$(mktemp /tmp/hyperfleet.XXXXXX)
	# shellcheck disable=SC2064
	trap "rm -f '$list'" EXIT
	softwareupdate --list </dev/null >"$list" 2>&1 || true
	label=$(listed label "$list")
	if [ -n "$label" ]; then
		echo "offered $label"
	elif grep -qE "Can.?.?.?t connect|Couldn't communicate" "$list"; then
		echo "failed UpdateServersUnreachable $(tail -n 1 "$list")"
	else
		echo "failed UpdateNotOffered Apple offers this Mac no macOS $WANTED; offered:$(listed versions "$list")"
	fi
}

# alive says whether softwareupdate, which this boot has started, still runs.
alive() { [ -s "$RUN" ] && kill -0 "$(cat "$RUN")" 2>/dev/null; }

halt() {
	local pid
	if ! alive; then return 0; fi
	pid=$(cat "$RUN")
	kill -TERM -- "-$pid" 2>/dev/null || true
	sleep 2
	kill -KILL -- "-$pid" 2>/dev/null || true
}

# begin leaves softwareupdate to itself, which takes many minutes and then restarts the host.
begin() {
	local password end
	IFS= read -r password || true
	IFS= read -r end || true
	if [ "$end" != "$END" ]; then
		echo "what arrived for softwareupdate was cut short: push it again" >&2
		exit 1
	fi

	halt
	mkdir -p "$STATE"
	: >"$STATE/log"
	echo "$ATTEMPT" >"$STATE/attempt"
	# A group of its own, which ends with nothing of this script's.
	set -m
	(
		printf '%s\n' "$password" | softwareupdate --install "$LABEL" --restart --force --agree-to-license \
			--user "$OWNER" --stdinpass
		echo "softwareupdate ended"
	) </dev/null >>"$STATE/log" 2>&1 &
	echo "$!" >"$RUN"
	disown
	set +m
}

# said prints the last line of what softwareupdate said.
said() { tr '\r' '\n' <"$STATE/log" | grep -v '^[[:space:]]*$' | tail -n 1 || true; }

install() {
	local reason=
	if [ ! -s "$STATE/attempt" ] || [ "$(cat "$STATE/attempt")" != "$ATTEMPT" ]; then
		begin
		echo "running softwareupdate was started"
		return
	fi

	if grep -q 'No such update' "$STATE/log"; then
		reason=UpdateNotOffered
	elif grep -q 'Not enough free disk space' "$STATE/log"; then
		reason=NotEnoughDisk
	elif grep -q 'Failed to authenticate' "$STATE/log"; then
		reason=VolumeOwnerRefused
	elif grep -qE "Failed to download|Can.?.?.?t connect|Couldn't communicate" "$STATE/log"; then
		reason=DownloadFailed
	elif [ ! -e "$RUN" ]; then
		# The host was started since.
		echo "failed VersionUnchanged the host has restarted and still has macOS $(version)"
		return
	fi

	if [ -n "$reason" ]; then
		halt
		echo "failed $reason $(grep -v '^softwareupdate ended$' "$STATE/log" | tr '\r' '\n' | tail -n 1)"
	elif alive; then
		echo "running $(said)"
	else
		echo "running softwareupdate has ended, and the host is to restart"
	fi
}

main() {
	local has
	has=$(version)
	echo "version $has"
	if [ "$STEP" = version ] || reached "$has"; then return; fi

	case $STEP in
	offer) offer ;;
	install) install ;;
	cancel)
		halt
		echo "failed UpdateTimedOut the update was ended, as its time was up: $(said)"
		;;
	esac
}
