// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// maxSecret bounds a secret's file: private keys and tokens are far smaller.
const maxSecret = 64 << 10

// Errors of SecretFile.Read.
var (
	ErrNoSecret  = errors.New("no secret file is configured")
	ErrBadSecret = errors.New("the file holds no secret")
)

// SecretFile is the path of a file that holds one secret, such as a key of a mounted
// Kubernetes Secret. The secret itself is never part of the configuration.
type SecretFile string

// Read returns what is in the file now, without white space at its end: a rotated
// secret is picked up by the next Read. An empty file, or one of more than 64 KiB, is
// an error.
func (f SecretFile) Read() (log.Secret, error) {
	if f == "" {
		return log.Secret{}, ErrNoSecret
	}

	file, err := os.Open(string(f))
	if err != nil {
		return log.Secret{}, fmt.Errorf("read secret: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return log.Secret{}, fmt.Errorf("read secret: %w", err)
	}

	data = bytes.TrimRight(data, " \t\r\n")

	switch {
	case len(data) == 0:
		return log.Secret{}, fmt.Errorf("read secret %s: %w: it is empty", string(f), ErrBadSecret)
	case len(data) > maxSecret:
		return log.Secret{}, fmt.Errorf("read secret %s: %w: it is larger than %d bytes", string(f), ErrBadSecret, maxSecret)
	}

	return log.NewSecret(string(data)), nil
}
