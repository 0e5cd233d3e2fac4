// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"time"

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

// NewHostCert makes a certificate of a host's key: what change makes of one that holds for an
// address and for an hour, signed by the authority.
func NewHostCert(
	key ssh.PublicKey, address string, authority ssh.Signer, change func(*ssh.Certificate),
) (*ssh.Certificate, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("certify a host: %w", err)
	}

	now := time.Now()
	cert := &ssh.Certificate{
		Key: key, CertType: ssh.HostCert, KeyId: host, ValidPrincipals: []string{host},
		ValidAfter: uint64(now.Add(-time.Hour).Unix()), ValidBefore: uint64(now.Add(time.Hour).Unix()),
	}

	if change != nil {
		change(cert)
	}

	if err := cert.SignCert(rand.Reader, authority); err != nil {
		return nil, fmt.Errorf("certify a host: %w", err)
	}

	return cert, nil
}
