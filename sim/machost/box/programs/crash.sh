#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs for two seconds of the host's simulated time, so that scripts see the program run.
. /sim/lib/jobs.sh
pause 0.1
exit 1
