#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
systemctl daemon-reload
for unit in /etc/systemd/system/multi-user.target.wants/*; do
	[ ! -e "$unit" ] || systemctl restart "${unit##*/}"
done
