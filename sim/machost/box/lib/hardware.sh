#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the disk of a host in the directory $1, for the system $2, from the programs in $3, and then
# runs for as long as its standard input is open. It runs in namespaces of its own. The disk is
# therefore not visible from outside, and nothing remains when this process ends.
set -euo pipefail
root=$1 system=$2 from=$3

mount -t tmpfs -o size=64m,mode=755 none "$root"
cd "$root"
mkdir -p usr dev proc tmp var/run var/root var/log etc/alternatives opt sim/bin sim/lib sim/machines
chmod 1777 tmp

mount --rbind -o ro /usr usr
# /usr/local holds the programs that are pushed to the host.
mount -t tmpfs -o size=32m,mode=755 none usr/local
mkdir -p usr/local/bin usr/local/libexec
for dir in bin sbin lib lib64; do
	if [ -L "/$dir" ]; then ln -s "usr/$dir" "$dir"; continue; fi
	if [ -d "/$dir" ]; then mkdir "$dir"; mount --rbind -o ro "/$dir" "$dir"; fi
done
mount --bind -o ro /etc/alternatives etc/alternatives
for device in null zero urandom; do
	: >"dev/$device"
	mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd

group=root
if [ "$system" = mac ]; then
	group=wheel
	mkdir -p Library/LaunchDaemons Library/LaunchAgents etc/pf.anchors var/db
	printf '%s\n' 'scrub-anchor "com.apple/*"' 'nat-anchor "com.apple/*"' 'rdr-anchor "com.apple/*"' \
		'anchor "com.apple/*"' 'load anchor "com.apple" from "/etc/pf.anchors/com.apple"' >etc/pf.conf
	echo 'anchor "200.AirDrop/*"' >etc/pf.anchors/com.apple
	mkdir sim/macos
	cp etc/pf.conf sim/macos/pf.conf
	echo 15.2 >sim/macos/version
	mkfifo sim/restart.fifo
else
	mkdir -p etc/systemd/system/multi-user.target.wants var/lib
fi
echo "root:x:0:0::/var/root:/bin/bash" >etc/passwd
echo "$group:x:0:" >etc/group

cp "$from"/common/* "$from/$system"/* sim/bin/
cp "$from"/lib/* sim/lib/
chmod 755 sim/bin/*
# The real programs that scripts can call.
for program in awk basename bash cat chmod chown cmp cp cut date dirname env false grep gzip head id ln ls mkdir mktemp mv \
	ps rm sed setsid sh sort tail tar touch tr true uname wc; do
	[ -e "sim/bin/$program" ] || ln -s "/usr/bin/$program" "sim/bin/$program"
done
if [ "$system" != mac ]; then
	ln -s /usr/bin/sha256sum sim/bin/sha256sum
	ln -s /usr/bin/stat sim/bin/stat
	ln -s /usr/sbin/nft sim/bin/nft
fi
mkfifo sim/machines.fifo sim/never

exec chroot . /bin/bash -c 'echo ready; exec /bin/cat >/dev/null'
