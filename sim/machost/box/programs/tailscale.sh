#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
. /sim/lib/jobs.sh
record_call "$@"
case $1 in
status) [ -e /var/run/tailscaled ] ;;
ip) cat /sim/run/tailnet 2>/dev/null ;;
up)
	for word in "${@:2}"; do
		case $word in
		--auth-key=file:*)
			key=${word#--auth-key=file:}
			if [ "$(/usr/bin/stat -c %a "$key")" != 600 ] || [ ! -s "$key" ]; then
				echo "invalid key: unable to validate API key" >&2
				exit 1
			fi ;;
		--reset | --timeout=* | --advertise-tags=tag:* | --accept-routes=* | --accept-dns=false | --hostname=*) ;;
		*) fail_unknown "$word" ;;
		esac
	done
	[ -e /var/run/tailscaled ] || exit 1
	echo 100.101.102.103 >/sim/run/tailnet
	;;
*) fail_unknown "$@" ;;
esac
