# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Progress of scripts that take time; to be sourced. Its users set step, steps and label.

step=0
steps=0
label=

clock() { printf '%dm%02ds' $((($1) / 60)) $((($1) % 60)); }

# say prints a progress line of the current step.
say() { printf '[%d/%d] %s: %s\n' "$step" "$steps" "$label" "$*"; }

# during runs a command with its output in a log, and shows the time that passes: on
# a terminal each second on one line, else a line every 30 seconds.
during() {
	local what=$1 log=$2 begun=$SECONDS shown=$SECONDS pid
	shift 2
	say "$what"
	# In a process group of its own, so that all of it can be ended.
	set -m
	"$@" >"$log" 2>&1 &
	pid=$!
	set +m
	# shellcheck disable=SC2064 # the id of now is meant
	trap "kill -- -$pid 2>/dev/null || true" EXIT
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if [ -t 1 ]; then
			printf '\r[%d/%d] %s: %s ... %s ' "$step" "$steps" "$label" "$what" "$(clock $((SECONDS - begun)))"
		elif [ $((SECONDS - shown)) -ge 30 ]; then
			shown=$SECONDS
			say "$what ... $(clock $((SECONDS - begun)))"
		fi
	done
	trap - EXIT
	[ -t 1 ] && printf '\r\033[K'
	if ! wait "$pid"; then
		say "failed after $(clock $((SECONDS - begun))); the last lines of $log:"
		tail -n 20 "$log" | sed 's/^/    /'
		return 1
	fi
	say "done in $(clock $((SECONDS - begun)))"
}
