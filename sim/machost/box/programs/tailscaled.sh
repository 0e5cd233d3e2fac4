#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
touch /var/run/tailscaled
exec /bin/sleep infinity
