#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The first process of a host. It boots the host and ends when its standard input is closed, which
# turns the host off.
set -u
rm -rf /sim/run /var/run /tmp/*
mkdir -p /sim/run /var/run
chmod 755 /var/run
# shellcheck source=/dev/null
. /sim/lib/boot.sh
echo ready
/bin/cat >/dev/null
