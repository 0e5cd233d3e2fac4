# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Progress output for long-running scripts. Source this file, and set step, steps and label.

step=0
steps=0
label=

clock() { printf '%dm%02ds' $((($1) / 60)) $((($1) % 60)); }

# log_step prints a progress line of the current step.
log_step() { printf '[%d/%d] %s: %s\n' "$step" "$steps" "$label" "$*"; }

# run_with_progress TITLE LOG COMMAND...: runs a command, writes its output to a log file, and shows the elapsed
# time. On a terminal, it updates one line continuously. Otherwise, it prints a line every 30 seconds.
run_with_progress() {
	local title=$1 log=$2 start=$SECONDS last_line=$SECONDS pid
	shift 2
	log_step "$title"
	# Run the command in its own process group, so that the trap can kill all its processes.
	set -m
	"$@" >"$log" 2>&1 &
	pid=$!
	set +m
	# shellcheck disable=SC2064 # expand the process ID now
	trap "kill -- -$pid 2>/dev/null || true" EXIT
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if [ -t 1 ]; then
			printf '\r[%d/%d] %s: %s ... %s ' "$step" "$steps" "$label" "$title" "$(clock $((SECONDS - start)))"
		elif [ $((SECONDS - last_line)) -ge 30 ]; then
			last_line=$SECONDS
			log_step "$title ... $(clock $((SECONDS - start)))"
		fi
	done
	trap - EXIT
	[ -t 1 ] && printf '\r\033[K'
	if ! wait "$pid"; then
		log_step "failed after $(clock $((SECONDS - start))), last lines of $log:"
		tail -n 20 "$log" | sed 's/^/    /'
		return 1
	fi
	log_step "done in $(clock $((SECONDS - start)))"
}
