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

// writeChecksums writes the SHA-256 checksums of all files in the format of sha256sum.
func (r *release) writeChecksums() error {
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
	defer file.Close() //nolint:errcheck // the file is only read

	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// sign signs the checksums, which cover all files. Both of these commands can verify the signature:
//
//	cosign verify-blob --key release.pub --signature SHA256SUMS.sig SHA256SUMS
//	base64 -d SHA256SUMS.sig >sig && openssl dgst -sha256 -verify release.pub -signature sig SHA256SUMS
func (r *release) sign() error {
	if r.key == "" {
		logf("signature: skipped because no key is set: set KEY=FILE")

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

	// Without a source of randomness, the signature is deterministic (RFC 6979).
	signature, err := key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return err
	}

	return r.write(signatureFile, base64.StdEncoding.EncodeToString(signature)+"\n")
}

// readKey reads an unencrypted ECDSA key in PEM, in the format SEC 1 or PKCS 8. openssl writes both.
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

			if ecdsaKey, ok := key.(*ecdsa.PrivateKey); ok {
				return ecdsaKey, nil
			}
		}
	}

	return nil, errors.New("no ECDSA key in PEM found: create one with openssl ecparam -name prime256v1 -genkey -noout")
}
