# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the version of the host's macOS, and runs one step of an update to the version WANTED.
# For an installation, standard input is the password of OWNER, who owns the host's volumes,
# because Apple silicon requires it. The exit code of softwareupdate does not help, because it
# is 0 even if nothing was installed. The script therefore checks the output, and the version
# after a restart.
RUN=/var/run/hyperfleet.macos-update
list=

version() { sw_vers -productVersion </dev/null; }

# reached succeeds if the version $1 is WANTED or later.
reached() {
	awk -v has="$1" -v want="$WANTED" 'BEGIN {
		split(has, a, "."); split(want, b, ".")
		for (i = 1; i <= 3; i++) if (a[i] + 0 != b[i] + 0) exit (a[i] + 0 < b[i] + 0)
	}'
}

# listed prints the label of macOS WANTED from the list of updates in file $2. If $1 is
# "versions", it prints all versions in the list.
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
	local label
	list=$(mktemp /tmp/hyperfleet.XXXXXX)
	trap 'rm -f "$list"' EXIT
	softwareupdate --list </dev/null >"$list" 2>&1 || true
	label=$(listed label "$list")
	if [ -n "$label" ]; then
		echo "offered $label"
	elif grep -qE "Can.?.?.?t connect|Couldn't communicate" "$list"; then
		echo "failed UpdateServersUnreachable $(tail -n 1 "$list")"
	else
		echo "failed UpdateNotOffered Apple does not offer macOS $WANTED to this Mac; offered:$(listed versions "$list")"
	fi
}

# is_running succeeds if a softwareupdate that was started since the last boot still runs.
is_running() { [ -s "$RUN" ] && kill -0 "$(cat "$RUN")" 2>/dev/null; }

halt() {
	local pid
	if ! is_running; then return 0; fi
	pid=$(cat "$RUN")
	kill -TERM -- "-$pid" 2>/dev/null || true
	sleep 2
	kill -KILL -- "-$pid" 2>/dev/null || true
}

# begin starts softwareupdate in the background. It takes many minutes and then restarts the
# host.
begin() {
	local password end
	IFS= read -r password || true
	IFS= read -r end || true
	if [ "$end" != "$END" ]; then
		echo "the input for softwareupdate was truncated: push it again" >&2
		exit 1
	fi

	halt
	mkdir -p "$STATE"
	: >"$STATE/log"
	echo "$ATTEMPT" >"$STATE/attempt"
	# Use a separate process group, so that softwareupdate outlives this script.
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

# last_line prints the last line of the output of softwareupdate.
last_line() { tr '\r' '\n' <"$STATE/log" | grep -v '^[[:space:]]*$' | tail -n 1 || true; }

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
		# The host has restarted since the installation began.
		echo "failed VersionUnchanged the host has restarted but still has macOS $(version)"
		return
	fi

	if [ -n "$reason" ]; then
		halt
		echo "failed $reason $(grep -v '^softwareupdate ended$' "$STATE/log" | tr '\r' '\n' | tail -n 1)"
	elif is_running; then
		echo "running $(last_line)"
	else
		echo "running softwareupdate has ended, and the host is about to restart"
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
		echo "failed UpdateTimedOut the update was stopped because its time was up: $(last_line)"
		;;
	esac
}
