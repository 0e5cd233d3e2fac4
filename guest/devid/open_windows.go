// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"fmt"

	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/windowstpm"
)

// openTPM opens the machine's TPM. Windows has at most one, so the path is not used.
func openTPM(string) (transport.TPMCloser, error) {
	device, err := windowstpm.Open()
	if err != nil {
		return nil, fmt.Errorf("open TPM: the machine has no TPM 2.0, or its service is not running: %w", err)
	}

	return device, nil
}
