#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lists the direct dependencies in go.mod with their versions. For each module, it also prints whether the
# module proxy has a newer version, and whether the module is deprecated or the version retracted.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t direct < <(go list -m -f '{{if not (or .Indirect .Main)}}{{.Path}}{{end}}' all | grep .)

go list -e -m -u -retracted -f '{{.Path}} {{.Version}}{{with .Update}}, newer: {{.Version}}{{end}}{{with .Deprecated}}, deprecated: {{.}}{{end}}{{with .Retracted}}, retracted: {{.}}{{end}}{{with .Error}}, unknown to the proxy{{end}}' \
	"${direct[@]}"
