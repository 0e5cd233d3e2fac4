#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The console session of a Mac: who is logged in, and the jobs of launchd that run there.
. /sim/lib/jobs.sh
session=/sim/run/session
login=$(of /sim/user)

# password prints what loginwindow reads of /etc/kcpassword.
password() {
	local key=(7d 89 52 23 d2 bc dd ea a3 b9 1f) byte i=0 c
	for byte in $(/usr/bin/od -An -v -tx1 /etc/kcpassword); do
		c=$((16#$byte ^ 16#${key[i++ % 11]}))
		[ "$c" != 0 ] || return 0
		printf '%b' "\\x$(printf %x "$c")"
	done
}

# login_user logs in whom auto-login names, where his password is right.
login_user() {
	local plist
	[ -s /etc/kcpassword ] && [ "$(of /var/db/autologin)" = "$login" ] || return 0
	[ "$(password)" = "$(of /sim/password)" ] || return 0
	echo "$login" >"$session"
	for plist in /Library/LaunchAgents/*.plist; do
		[ ! -e "$plist" ] || launchctl bootstrap "gui/$(id -u "$login")" "$plist"
	done
}

# logout_user ends the session and all that runs in it, machines as well: also those that have
# outlived the job that began them, and so are of no job's processes.
logout_user() {
	local job machine pid i
	rm -f "$session"
	for job in /sim/run/gui/*; do
		[ ! -d "$job" ] || halt "$job" group
	done
	rm -rf /sim/run/gui
	for machine in /var/run/machines/*; do
		pid=$(of "$machine")
		if [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; then
			# A process takes a moment to end after its signal.
			for ((i = 0; i < 100; i++)); do
				[ -e "/proc/$pid/exe" ] || break
				pause 0.02
			done
		fi
		rm -f "$machine"
	done
}
