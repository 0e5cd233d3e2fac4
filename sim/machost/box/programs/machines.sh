#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the machines that are wanted, and finds those again that are running.
mkdir -p /var/run/machines
exec 3<>/sim/machines.fifo
while :; do
	for want in /sim/machines/*; do
		name=${want##*/}
		[ -e "$want" ] || continue
		if [ -s "/var/run/machines/$name" ] && kill -0 "$(cat "/var/run/machines/$name")" 2>/dev/null; then continue; fi
		# On a Mac nothing but the console session runs machines.
		if [ -e /sim/bin/vz ] && ! /sim/bin/vz; then continue; fi
		(exec -a "machine-$name" /bin/sleep infinity 3>&-) &
		echo "$!" >"/var/run/machines/$name"
	done
	read -r _ <&3
done
