#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A prepared update of macOS is installed before a user can log in. The update restores Apple's
# version of the system's files.
if [ -e /sim/macos/pending ]; then
	if [ "$(cat /sim/macos/fault 2>/dev/null)" != stays ]; then
		cp /sim/macos/pending /sim/macos/version
		cp /sim/macos/pf.conf /etc/pf.conf
	fi
	rm -f /sim/macos/pending
fi
mkdir -p /sim/run/pf
pfctl -q -f /etc/pf.conf
. /sim/lib/session.sh
for plist in /Library/LaunchDaemons/*.plist; do
	[ ! -e "$plist" ] || launchctl bootstrap system "$plist"
done
login_user
