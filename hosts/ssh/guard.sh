# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs what comes on standard input, named $1, for at most $2 seconds. It has a process
# group of its own, so that it can be ended with all that it has started. One runs at a
# time: one that an earlier connection has left is ended first. Where $3 is "beside" it runs
# beside that one, and they leave each other alone. What is called here with its path may
# not be anybody's in PATH.
set -mu
export LC_ALL=C
mark=/var/run/hyperfleet.script
# The shell's own words about jobs are nobody's concern.
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

# It is written down before it runs: the same process does both.
export mark
export -f born
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
	echo "hyperfleet: $1 was ended after $2 s" >&3
	exit 124
fi
kill -KILL -- "-$watch"
# Whoever has ended this one may have written down its own by now.
if read -r now _ <"$mark" && [ "$now" = "$script" ]; then rm -f "$mark"; fi
exit "$code"
