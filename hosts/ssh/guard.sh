# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the script on standard input, named $1, for at most $2 seconds. The script has a
# process group of its own, so that it can be stopped with everything that it has started.
# Only one script runs at a time: a script that an earlier connection has left running is
# stopped first. If $3 is "beside", the script runs concurrently and stops no other script.
# Commands with a full path must not be looked up in PATH.
set -mu
export LC_ALL=C
mark=/var/run/hyperfleet.script
# Discard the shell's own messages about jobs.
exec 3>&2 2>/dev/null

born() { ps -o lstart= -p "$1" | awk '{ $1 = $1; print }'; }

end() {
	local i
	kill -TERM -- "-$1" || return 0
	for ((i = 0; i < 50; i++)); do
		kill -0 -- "-$1" || return 0
		/bin/sleep 0.1
	done
	kill -KILL -- "-$1"
}

if [ "${3-}" = beside ]; then mark=/var/run/hyperfleet.beside.$$; fi

old='' since=''
if [ -s "$mark" ]; then read -r old since <"$mark"; fi
if [ -n "$old" ] && [ -n "$since" ] && [ "$(born "$old")" = "$since" ]; then end "$old"; fi
rm -f "$mark.late"

# The script's process writes the mark itself, before it runs the script.
export mark
export -f born
# The shell of the user may have printed something before.
echo "hyperfleet: output of $1"
/bin/bash -c 'printf "%s %s\n" "$$" "$(born "$$")" >"$mark"; export -fn born; export -n mark; exec /bin/bash -s' <&0 2>&3 3>&- &
script=$!
{
	/bin/sleep "$2"
	: >"$mark.late"
	end "$script"
} </dev/null >/dev/null 3>&- &
watch=$!

wait "$script"
code=$?
if [ -e "$mark.late" ]; then
	wait "$watch"
	echo "hyperfleet: $1 was stopped after $2 s" >&3
	exit 124
fi
kill -KILL -- "-$watch"
# If another guard has stopped this script, the mark may already be that guard's.
if read -r now _ <"$mark" && [ "$now" = "$script" ]; then rm -f "$mark"; fi
exit "$code"
