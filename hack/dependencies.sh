#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lists the modules that go.mod names, each with its version and with what the module proxy says
# of it: a newer version, that it is deprecated, or that its authors took the version back.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t direct < <(go list -m -f '{{if not (or .Indirect .Main)}}{{.Path}}{{end}}' all | grep .)

go list -e -m -u -retracted -f '{{.Path}} {{.Version}}{{with .Update}}, newer: {{.Version}}{{end}}{{with .Deprecated}}, deprecated: {{.}}{{end}}{{with .Retracted}}, taken back: {{.}}{{end}}{{with .Error}}, the proxy does not say{{end}}' \
	"${direct[@]}"
