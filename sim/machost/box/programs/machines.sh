#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Starts the requested machines. After a restart it recognizes the machines that still run.
mkdir -p /var/run/machines
exec 3<>/sim/machines.fifo
while :; do
	for request in /sim/machines/*; do
		name=${request##*/}
		[ -e "$request" ] || continue
		if [ -s "/var/run/machines/$name" ] && kill -0 "$(cat "/var/run/machines/$name")" 2>/dev/null; then continue; fi
		# On a Mac, only processes of the console session can start machines.
		if [ -e /sim/bin/vz ] && ! /sim/bin/vz; then continue; fi
		(exec -a "machine-$name" /bin/sleep infinity 3>&-) &
		echo "$!" >"/var/run/machines/$name"
	done
	read -r _ <&3
done
