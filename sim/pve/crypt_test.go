// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "testing"

// The password is that of the algorithm's own test.
func TestEncryptPassword(t *testing.T) {
	t.Parallel()
	const want = "$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5"
	if got := encryptPassword("Hello world!", "saltstring"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
