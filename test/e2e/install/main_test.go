// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// `make e2e-install` builds the release in this folder.
const (
	root    = "../../../"
	dist    = root + "bin/install"
	version = "0.0.0-install"
	// otherNamespace is a namespace for the operator other than the default, so that nothing depends on the default.
	otherNamespace = "fleet-system"
)

// releaseFile returns the path of a file of the release.
func releaseFile(t testing.TB, name string) string {
	t.Helper()

	path, err := filepath.Abs(filepath.Join(dist, name))
	if err == nil {
		_, err = os.Stat(path)
	}

	if err != nil {
		t.Fatalf("find %s: %v: run make e2e-install", name, err)
	}

	return path
}

// releaseProgram returns the path of a program of the release for this machine.
func releaseProgram(t testing.TB, name string) string {
	t.Helper()

	return releaseFile(t, name+"-linux-"+runtime.GOARCH)
}
