// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

func TestDevIDSettings(t *testing.T) {
	t.Parallel()

	good, other := tpm.DevID(t), tpm.DevID(t)

	for name, tc := range map[string]struct {
		cfg  v1alpha1.DevID
		want string
	}{
		"none":                {v1alpha1.DevID{}, ""},
		"in order":            {good, ""},
		"no key":              {v1alpha1.DevID{CertFile: good.CertFile}, "identity.devID.keyFile"},
		"no certificate":      {v1alpha1.DevID{KeyFile: good.KeyFile}, "identity.devID.certFile"},
		"another's key":       {v1alpha1.DevID{CertFile: good.CertFile, KeyFile: other.KeyFile}, "identity.devID"},
		"a key's certificate": {v1alpha1.DevID{CertFile: good.KeyFile, KeyFile: good.KeyFile}, "identity.devID"},
	} {
		err := devIDSettings(tc.cfg)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
