// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// NewKey makes a key as ssh-keygen does: the file with the private one, and the line of the
// public one.
func NewKey() (private, public string, err error) {
	open, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make an SSH key: %w", err)
	}

	block, err := ssh.MarshalPrivateKey(secret, "")
	if err != nil {
		return "", "", fmt.Errorf("make an SSH key: %w", err)
	}

	line, err := ssh.NewPublicKey(open)
	if err != nil {
		return "", "", fmt.Errorf("make an SSH key: %w", err)
	}

	return string(pem.EncodeToMemory(block)), string(ssh.MarshalAuthorizedKey(line)), nil
}
