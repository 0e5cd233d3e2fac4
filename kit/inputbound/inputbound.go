// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package inputbound

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
)

// ErrTooLarge is what an error of this package is, if it is about a limit.
var ErrTooLarge = errors.New("too large")

// JSON refuses a JSON text of more values than that. Whether it is JSON is for the parser to
// say.
func JSON(text []byte, most int) error {
	found, quoted := 1, false

	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // whatever is escaped ends no string
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '[' || c == '{'):
			found++
		}
	}

	return count(found, most)
}

// YAML is JSON for a YAML text. It counts what may part values, in strings too: a line of a
// script counts as one.
func YAML(text []byte, most int) error {
	found := 1
	for _, part := range []string{"\n", "\r", ",", "[", "{", "- ", "-\t", "? ", "?\t"} {
		found += bytes.Count(text, []byte(part))
	}

	return count(found, most)
}

// anchor is the name of a value that a YAML text repeats: few of them make much of little.
var anchor = regexp.MustCompile(`(?m)(^|[\s,:\[{-])&[^\s&]`)

// Anchors refuses a YAML text that has any.
func Anchors(text []byte) error {
	if anchor.Match(text) {
		return fmt.Errorf("%w: it has an anchor (&name): write the value where it is used", ErrTooLarge)
	}

	return nil
}

// maxKey is what a private key may have in PEM: RSA of 8192 bits has 6,400 bytes.
const maxKey = 8 << 10

// Key refuses a private key that is larger: signing takes the cube of its length, and one of
// 40 KiB took minutes.
func Key(text []byte) error {
	if len(text) > maxKey {
		return fmt.Errorf("%w: a private key of %d bytes: %d at most", ErrTooLarge, len(text), maxKey)
	}

	return nil
}

// Text refuses a text of more bytes than that.
func Text(text []byte, most int) error {
	if len(text) > most {
		return fmt.Errorf("%w: it has %d bytes: %d at most", ErrTooLarge, len(text), most)
	}

	return nil
}

// What a bundle of authorities may have: that of a system, with some 150, has 225 KiB.
const (
	maxBundle       = 256 << 10
	maxCertificates = 500
)

// Authorities reads certificates in PEM, and puts them beside others, such as the system's; beside
// may be nil.
func Authorities(text []byte, beside *x509.CertPool) (*x509.CertPool, error) {
	if err := Text(text, maxBundle); err != nil {
		return nil, err
	}

	if found := bytes.Count(text, []byte("-----BEGIN")); found > maxCertificates {
		return nil, fmt.Errorf("%w: it has %d certificates: %d at most", ErrTooLarge, found, maxCertificates)
	}

	out := x509.NewCertPool()
	if beside != nil {
		out = beside.Clone()
	}

	if !out.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in it: write PEM")
	}

	return out, nil
}

func count(found, most int) error {
	if found > most {
		return fmt.Errorf("%w: it has %d values: %d at most", ErrTooLarge, found, most)
	}

	return nil
}
