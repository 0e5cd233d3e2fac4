// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package must

import "testing"

// Do ends the test if the call before it returned an error.
func Do(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
