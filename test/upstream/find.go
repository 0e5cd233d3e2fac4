// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strconv"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// findBinary returns the directory of a program. It skips the test if the program is missing.
func findBinary(t testing.TB, program string) string {
	t.Helper()

	bin, err := procrun.FindBinaries(program)
	if err != nil {
		t.Skipf("find %s: %v: run hack/setup.sh upstream to build it", program, err)
	}

	return bin
}

func pickPort(t testing.TB) string {
	t.Helper()

	return strconv.Itoa(loopback.Port(t))
}
