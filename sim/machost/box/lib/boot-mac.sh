#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
mkdir -p /sim/run/pf
pfctl -q -f /etc/pf.conf
. /sim/lib/session.sh
for plist in /Library/LaunchDaemons/*.plist; do
	[ ! -e "$plist" ] || launchctl bootstrap system "$plist"
done
login_user
