#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The console session of a Mac: the user that is logged in, and launchd's jobs in the session.
. /sim/lib/jobs.sh
session=/sim/run/session
login=$(read_line /sim/user)

# read_password prints the password in /etc/kcpassword, as loginwindow decodes it.
read_password() {
	local key=(7d 89 52 23 d2 bc dd ea a3 b9 1f) byte i=0 c
	for byte in $(/usr/bin/od -An -v -tx1 /etc/kcpassword); do
		c=$((16#$byte ^ 16#${key[i++ % 11]}))
		[ "$c" != 0 ] || return 0
		printf '%b' "\\x$(printf %x "$c")"
	done
}

# login_user logs in the user of the automatic login if the stored password is correct.
login_user() {
	local plist
	[ -s /etc/kcpassword ] && [ "$(read_line /var/db/autologin)" = "$login" ] || return 0
	[ "$(read_password)" = "$(read_line /sim/password)" ] || return 0
	echo "$login" >"$session"
	for plist in /Library/LaunchAgents/*.plist; do
		[ ! -e "$plist" ] || launchctl bootstrap "gui/$(id -u "$login")" "$plist"
	done
}

# logout_user ends the session, its jobs and its machines. A machine can outlive the job that started
# it and then belongs to no job's process group, so logout_user kills machines by their process ids.
logout_user() {
	local job machine pid
	rm -f "$session"
	for job in /sim/run/gui/*; do
		[ ! -d "$job" ] || stop_job "$job" group
	done
	rm -rf /sim/run/gui
	for machine in /var/run/machines/*; do
		pid=$(read_line "$machine")
		if [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; then
			wait_ended "$pid"
		fi
		rm -f "$machine"
	done
}
