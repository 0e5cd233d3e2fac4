// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package loopback

import (
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
