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
	// minKeyLength is the minimum length of a key in bytes. It is the length of the HMAC's output
	// (RFC 2104, section 3).
	minKeyLength = 32
	keyIDDigits  = 8
)

// Keys sign and verify identities: the first key signs, all keys verify. When Keys are printed,
// they do not reveal the keys. The methods are safe for concurrent use.
type Keys struct {
	keys []key
}

type key struct {
	id     string
	secret log.Secret
}

// ReadKeys reads a file with one key per line. A key has at least 32 printable characters and no
// white space (openssl rand -base64 48). Empty lines and lines that begin with # are ignored.
//
// To rotate a key, first add the new key below the old key in all files, then move it above the old
// key. Adapters sign their objects again with the next events, at the latest after Sentinel's
// longest resync interval. Then remove the old key.
func ReadKeys(path string) (*Keys, error) {
	text, err := log.ReadSecretFile(path)
	if err != nil {
		return nil, fmt.Errorf("read identity keys: %w", err)
	}

	keys, err := ParseKeys([]byte(text.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("read identity keys %s: %w", path, err)
	}

	return keys, nil
}

// ParseKeys parses the content of a key file; see ReadKeys. Errors name the line but never contain
// its text.
func ParseKeys(data []byte) (*Keys, error) {
	keys := &Keys{}

	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}

		if strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d: a key has to be printable text without white space: "+
				"generate one with `openssl rand -base64 48`", i+1)
		}

		if len(line) < minKeyLength {
			return nil, fmt.Errorf("line %d: a key needs at least %d characters, this one has %d", i+1, minKeyLength, len(line))
		}

		keys.keys = append(keys.keys, newKey(line))
	}

	if len(keys.keys) == 0 {
		return nil, errors.New("the file has no key: generate one with `openssl rand -base64 48`")
	}

	return keys, nil
}

func newKey(secret string) key {
	sum := sha256.Sum256([]byte("hyperfleet.io/identity key " + secret))

	return key{id: hex.EncodeToString(sum[:])[:keyIDDigits], secret: log.NewSecret(secret)}
}
