// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machosttest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// Start starts a host and closes it when the test ends.
func Start(t testing.TB, options machost.Options) *machost.Host {
	t.Helper()

	host, err := machost.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if unknown := host.UnknownCalls(); len(unknown) > 0 {
			t.Errorf("the simulator does not support these calls: %q", unknown)
		}

		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})

	return host
}

// NewKey creates a private key and the line of authorized_keys(5) that permits logins with this key.
func NewKey(t testing.TB) (log.Secret, string) {
	t.Helper()

	private, public, err := machost.NewKey()
	if err != nil {
		t.Fatal(err)
	}

	return log.NewSecret(private), public
}
