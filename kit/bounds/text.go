// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
)

// ErrTooLarge is wrapped by every error about an exceeded limit.
var ErrTooLarge = errors.New("too large")

// CheckJSON returns an error if a JSON text has more values than the limit. It does not check
// whether the text is valid JSON.
func CheckJSON(text []byte, limit int) error {
	values, isQuoted := 1, false

	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case isQuoted && c == '\\':
			i++ // an escaped character does not end the string
		case c == '"':
			isQuoted = !isQuoted
		case !isQuoted && (c == ',' || c == '[' || c == '{'):
			values++
		}
	}

	return checkCount(values, limit)
}

// CheckYAML returns an error if a YAML text has more values than the limit. It counts every
// separator of values, also in strings, so each line of an embedded script counts as a value.
func CheckYAML(text []byte, limit int) error {
	values := 1
	for _, part := range []string{"\n", "\r", ",", "[", "{", "- ", "-\t", "? ", "?\t"} {
		values += bytes.Count(text, []byte(part))
	}

	return checkCount(values, limit)
}

// anchorPattern matches a YAML anchor. With a few anchors and aliases, a small text expands to a
// huge value.
var anchorPattern = regexp.MustCompile(`(?m)(^|[\s,:\[{-])&[^\s&]`)

// RejectAnchors returns an error if a YAML text contains an anchor.
func RejectAnchors(text []byte) error {
	if anchorPattern.Match(text) {
		return fmt.Errorf("%w: the YAML has an anchor (&name): write the value where it is used", ErrTooLarge)
	}

	return nil
}

// maxKeyBytes is the maximum size of a private key in PEM. An RSA key of 8192 bits has 6,400 bytes.
const maxKeyBytes = 8 << 10

// CheckPrivateKey returns an error if a private key in PEM has more than 8 KiB. The time to sign
// grows with the cube of the key length: a key of 40 KiB took minutes.
func CheckPrivateKey(text []byte) error {
	if len(text) > maxKeyBytes {
		return fmt.Errorf("%w: the private key has %d bytes, at most %d are allowed", ErrTooLarge, len(text), maxKeyBytes)
	}

	return nil
}

// CheckSize returns an error if a text has more bytes than the limit.
func CheckSize(text []byte, limit int) error {
	if len(text) > limit {
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTooLarge, len(text), limit)
	}

	return nil
}

// Limits of a CA bundle. The bundle of an operating system has about 150 certificates and 225 KiB.
const (
	maxBundleBytes  = 256 << 10
	maxCertificates = 500
)

// ParseCABundle parses certificates in PEM and returns a pool of these certificates and those of
// base, such as the system's pool. base may be nil and is not changed.
func ParseCABundle(text []byte, base *x509.CertPool) (*x509.CertPool, error) {
	if err := CheckSize(text, maxBundleBytes); err != nil {
		return nil, err
	}

	if certificates := bytes.Count(text, []byte("-----BEGIN")); certificates > maxCertificates {
		return nil, fmt.Errorf("%w: it has %d certificates, at most %d are allowed", ErrTooLarge, certificates, maxCertificates)
	}

	out := x509.NewCertPool()
	if base != nil {
		out = base.Clone()
	}

	if !out.AppendCertsFromPEM(text) {
		return nil, errors.New("it contains no certificate: use PEM")
	}

	return out, nil
}

func checkCount(values, limit int) error {
	if values > limit {
		return fmt.Errorf("%w: it has %d values, at most %d are allowed", ErrTooLarge, values, limit)
	}

	return nil
}
