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

// NewKey creates a key as ssh-keygen does. It returns the content of the private key's file and the
// line of the public key.
func NewKey() (private, public string, err error) {
	publicKey, privateKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("create SSH key: %w", err)
	}

	block, err := ssh.MarshalPrivateKey(privateKey, "")
	if err != nil {
		return "", "", fmt.Errorf("create SSH key: %w", err)
	}

	line, err := ssh.NewPublicKey(publicKey)
	if err != nil {
		return "", "", fmt.Errorf("create SSH key: %w", err)
	}

	return string(pem.EncodeToMemory(block)), string(ssh.MarshalAuthorizedKey(line)), nil
}

// NewHostCert creates a certificate for a host key and signs it with the authority. By default the
// certificate holds for the host of the address and expires after an hour. If change is not nil,
// NewHostCert calls change with the certificate before it signs.
func NewHostCert(
	key ssh.PublicKey, address string, authority ssh.Signer, change func(*ssh.Certificate),
) (*ssh.Certificate, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("create host certificate: %w", err)
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
		return nil, fmt.Errorf("create host certificate: %w", err)
	}

	return cert, nil
}
