// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"errors"
	"fmt"
	"os"

	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"
)

func openTPM(path string) (transport.TPMCloser, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open TPM: %s does not exist: the machine has no TPM 2.0, or its kernel has no driver for it", path)
	}

	if err != nil {
		return nil, fmt.Errorf("open TPM: %w", err)
	}

	var device transport.TPMCloser

	if info.Mode()&os.ModeSocket != 0 {
		device, err = linuxudstpm.Open(path)
	} else {
		device, err = linuxtpm.Open(path)
	}

	if err != nil {
		return nil, fmt.Errorf("open TPM %s: %w", path, err)
	}

	return device, nil
}
