// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"os"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// Address returns a loopback address host:port with a free port, as procrun.Ports chooses it.
func Address(t testing.TB) string {
	t.Helper()

	address, err := procrun.PickAddress()
	if err != nil {
		t.Fatal(err)
	}

	return address
}

// Port returns a free loopback port, as procrun.Ports chooses it.
func Port(t testing.TB) int {
	t.Helper()

	ports, err := procrun.PickPorts(1)
	if err != nil {
		t.Fatal(err)
	}

	return ports[0]
}

// SocketFolder returns an empty folder, which is deleted when the test ends. The path of a Unix socket has at most 107
// bytes (sun_path in unix(7)), and t.TempDir contains the test's name, so that paths in it can be longer.
func SocketFolder(t testing.TB) string {
	t.Helper()

	folder, err := os.MkdirTemp("", "hf-") //nolint:usetesting // see the comment above
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})

	return folder
}
