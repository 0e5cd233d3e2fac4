// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"io/fs"

	"github.com/hyperfleet/hyperfleet/deploy"
)

// manifests are the generated ones that a cluster needs for the operator.
func manifests() []fs.FS { return []fs.FS{deploy.CRDs} }
