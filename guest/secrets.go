// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// fetchSecrets gets the credential from a secrets manager, with method external-secrets.
func (s *Service) fetchSecrets(_ context.Context, cfg *guest.Config) error {
	if cfg.Method != guest.MethodExternalSecrets {
		return nil
	}

	return failed(guest.ReasonSecretsUnavailable, "not there yet")
}
