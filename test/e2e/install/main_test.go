// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// What `make e2e-install` has made, and where: the release, and helm.
const (
	root    = "../../../"
	dist    = root + "bin/install"
	version = "0.0.0-install"
	// space is the operator's namespace: another one than the manifests name, so that
	// nothing works by chance.
	space = "fleet-system"
)

// released is a file of the release.
func released(t testing.TB, name string) string {
	t.Helper()

	path, err := filepath.Abs(filepath.Join(dist, name))
	if err == nil {
		_, err = os.Stat(path)
	}

	if err != nil {
		t.Fatalf("find %s: %v: make e2e-install makes it", name, err)
	}

	return path
}

// program is one of the release's programs for this machine.
func program(t testing.TB, name string) string {
	t.Helper()

	return released(t, name+"-linux-"+runtime.GOARCH)
}
