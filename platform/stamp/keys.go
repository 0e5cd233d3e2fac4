// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// minKey is the length of a key in bytes, that of the HMAC's output (RFC 2104,
	// section 3).
	minKey   = 32
	idDigits = 8
)

// Keys are those that identities are signed and verified with: the first signs, all
// verify. Printed, they show nothing. Methods may be called at once.
type Keys struct {
	keys []key
}

type key struct {
	id     string
	secret log.Secret
}

// ReadKeys reads a file with one key in each line, of at least 32 printable characters
// without white space (openssl rand -base64 48). Empty lines and those that begin with #
// are passed over. To change a key, put the new one below the old one everywhere, then
// above it. Adapters sign their objects again with the next events, at the latest after
// Sentinel's longest cadence; then take the old one away.
func ReadKeys(path string) (*Keys, error) {
	text, err := log.ReadSecret(path)
	if err != nil {
		return nil, fmt.Errorf("read identity keys: %w", err)
	}

	keys, err := ParseKeys([]byte(text.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("read identity keys %s: %w", path, err)
	}

	return keys, nil
}

// ParseKeys reads what a key file holds; see ReadKeys. Errors name the line and never
// what is in it.
func ParseKeys(data []byte) (*Keys, error) {
	keys := &Keys{}

	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}

		if strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d: a key is printable text without white space, for example of `openssl rand -base64 48`", i+1)
		}

		if len(line) < minKey {
			return nil, fmt.Errorf("line %d: a key has at least %d characters, this has %d", i+1, minKey, len(line))
		}

		keys.keys = append(keys.keys, newKey(line))
	}

	if len(keys.keys) == 0 {
		return nil, errors.New("no key in it: write one of at least 32 characters, for example of `openssl rand -base64 48`")
	}

	return keys, nil
}

func newKey(secret string) key {
	sum := sha256.Sum256([]byte("hyperfleet.io/identity key " + secret))

	return key{id: hex.EncodeToString(sum[:])[:idDigits], secret: log.NewSecret(secret)}
}
