// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	sumsFile      = "SHA256SUMS"
	signatureFile = "SHA256SUMS.sig"
)

// checksums writes the sum of everything, as sha256sum does.
func (r *release) checksums() error {
	items, err := os.ReadDir(r.dist)
	if err != nil {
		return err
	}

	var out strings.Builder

	for _, item := range items {
		sum, err := sha256Of(r.file(item.Name()))
		if err != nil {
			return err
		}

		fmt.Fprintf(&out, "%s  %s\n", sum, item.Name())
	}

	return r.write(sumsFile, out.String())
}

func sha256Of(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // it was only read

	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// sign signs the sums, and so everything, in the form that both take:
//
//	cosign verify-blob --key release.pub --signature SHA256SUMS.sig SHA256SUMS
//	base64 -d SHA256SUMS.sig >sig && openssl dgst -sha256 -verify release.pub -signature sig SHA256SUMS
func (r *release) sign() error {
	if r.key == "" {
		sayf("signature: there is none, for want of a key: give one by KEY=FILE")

		return nil
	}

	key, err := readKey(r.key)
	if err != nil {
		return fmt.Errorf("read key %s: %w", r.key, err)
	}

	data, err := os.ReadFile(r.file(sumsFile))
	if err != nil {
		return err
	}

	digest := sha256.Sum256(data)

	// Without a source of randomness the signature follows from the key and what is signed
	// (RFC 6979).
	signature, err := key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return err
	}

	return r.write(signatureFile, base64.StdEncoding.EncodeToString(signature)+"\n")
}

// readKey reads an ECDSA key as openssl writes it: SEC 1 or PKCS 8, in PEM, unencrypted.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "EC PRIVATE KEY":
			return x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}

			if ec, is := key.(*ecdsa.PrivateKey); is {
				return ec, nil
			}
		}
	}

	return nil, errors.New("it has no ECDSA key in PEM: openssl ecparam -name prime256v1 -genkey -noout makes one")
}
