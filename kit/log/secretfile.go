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

// maxSecret bounds a secret's file: private keys and tokens are far smaller.
const maxSecret = 64 << 10

// ReadSecret returns what is in the file now, without white space at its end: a rotated
// secret is there with the next call. An empty file, or one of more than 64 KiB, is an
// error; no error has the secret.
func ReadSecret(path string) (Secret, error) {
	if path == "" {
		return Secret{}, errors.New("no secret file is configured")
	}

	file, err := os.Open(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read secret: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return Secret{}, fmt.Errorf("read secret: %w", err)
	}

	data = bytes.TrimRight(data, " \t\r\n")

	switch {
	case len(data) == 0:
		return Secret{}, fmt.Errorf("read secret %s: the file is empty", path)
	case len(data) > maxSecret:
		return Secret{}, fmt.Errorf("read secret %s: the file is larger than %d bytes", path, maxSecret)
	}

	return NewSecret(string(data)), nil
}
