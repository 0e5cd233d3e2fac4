#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lives for as long as six seconds of the host's scripts, so that they see it run.
/bin/sleep 0.2
exit 1
