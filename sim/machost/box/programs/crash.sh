#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lives for as long as two seconds of the host's scripts, so that they see it run.
. /sim/lib/jobs.sh
pause 0.1
exit 1
