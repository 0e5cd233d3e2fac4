// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// Address is host:port of loopback, as procrun.Ports picks it.
func Address(t testing.TB) string {
	t.Helper()

	address, err := procrun.Address()
	if err != nil {
		t.Fatal(err)
	}

	return address
}

// Port is one of procrun.Ports.
func Port(t testing.TB) int {
	t.Helper()

	ports, err := procrun.Ports(1)
	if err != nil {
		t.Fatal(err)
	}

	return ports[0]
}
