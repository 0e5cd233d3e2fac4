// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxSecretBytes is the maximum size of a secret file. Private keys and tokens are far smaller.
const maxSecretBytes = 64 << 10

// ReadSecretFile returns the current content of the file without trailing white space. Each call
// reads the file, so a rotated secret takes effect with the next call. ReadSecretFile returns an
// error if the file is empty or has more than 64 KiB. No error contains the secret.
func ReadSecretFile(path string) (Secret, error) {
	if path == "" {
		return Secret{}, errors.New("no secret file is configured")
	}

	file, err := os.Open(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read secret: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return Secret{}, fmt.Errorf("read secret: %w", err)
	}

	data = bytes.TrimRight(data, " \t\r\n")

	switch {
	case len(data) == 0:
		return Secret{}, fmt.Errorf("read secret %s: the file is empty", path)
	case len(data) > maxSecretBytes:
		return Secret{}, fmt.Errorf("read secret %s: the file is larger than %d bytes", path, maxSecretBytes)
	}

	return NewSecret(string(data)), nil
}
