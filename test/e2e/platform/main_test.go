// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// binary is hyperfleet.
var binary string

func TestMain(m *testing.M) { os.Exit(brokers.Main(func() int { return run(m) })) }

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())

	dir, err := os.MkdirTemp("", "hyperfleet-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer os.RemoveAll(dir)

	binary = filepath.Join(dir, "hyperfleet")

	if out, err := exec.Command("go", "build", "-o", binary, "../../../cmd/hyperfleet").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build hyperfleet: %v\n%s", err, out)

		return 1
	}

	return m.Run()
}
