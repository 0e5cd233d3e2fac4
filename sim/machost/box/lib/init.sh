#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The first process of a host: starts what starts with it. The host is switched off when
# its standard input ends.
set -u
rm -rf /sim/run /var/run /tmp/*
mkdir -p /sim/run /var/run
chmod 755 /var/run
# shellcheck source=/dev/null
. /sim/lib/boot.sh
echo ready
/bin/cat >/dev/null
