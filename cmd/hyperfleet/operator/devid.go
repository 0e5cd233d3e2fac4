// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/devid"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// validateDevID checks that the files of the CA for device identities can be loaded. The operator reads the
// files again each time it needs the CA.
func validateDevID(cfg v1alpha1.DevID) error {
	switch {
	case cfg.CertFile == "" && cfg.KeyFile == "":
		return nil
	case cfg.CertFile == "":
		return strictyaml.ErrorAt("identity.devID.certFile", "it is required with identity.devID.keyFile")
	case cfg.KeyFile == "":
		return strictyaml.ErrorAt("identity.devID.keyFile", "it is required with identity.devID.certFile")
	}

	if _, err := devid.Load(cfg, clock.RealClock{}); err != nil {
		return strictyaml.ErrorAt("identity.devID", "%w", err)
	}

	return nil
}
