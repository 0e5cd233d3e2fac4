// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/exe"
)

// binary is hyperfleet-platform.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet-platform")

		return m.Run()
	}, "cmd/hyperfleet-platform")
}
