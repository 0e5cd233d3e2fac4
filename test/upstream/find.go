// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strconv"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// find gives the folder of a program, or skips the test.
func find(t testing.TB, program string) string {
	t.Helper()

	bin, err := procrun.FindBinaries(program)
	if err != nil {
		t.Skipf("hack/setup.sh upstream makes it: %v", err)
	}

	return bin
}

func port(t testing.TB) string {
	t.Helper()

	return strconv.Itoa(loopback.Port(t))
}
