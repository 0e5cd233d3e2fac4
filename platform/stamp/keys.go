// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package stamp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
)

const (
	// minKey is the length of a key in bytes, that of the HMAC's output (RFC 2104,
	// section 3).
	minKey = 32
	// maxKeyFile in bytes; more is no key file.
	maxKeyFile = 64 << 10
	idDigits   = 8
)

// Keys are those that identities are signed and verified with: the first signs, all
// verify. They print redacted. Methods may be called at once.
type Keys struct {
	keys []key
}

type key struct {
	id     string
	secret []byte
}

// ReadKeys reads a file with one key in each line, of at least 32 printable characters
// without white space (openssl rand -base64 48). Empty lines and those that begin with #
// are passed over. To change a key, put the new one below the old one everywhere, then
// above it. Adapters sign their objects again with the next events, at the latest after
// Sentinel's longest cadence; then take the old one away.
func ReadKeys(path string) (*Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read identity keys: %w", err)
	}

	if info.Size() > maxKeyFile {
		return nil, fmt.Errorf("read identity keys %s: %d bytes are more than a key file has; one key in each line", path, info.Size())
	}

	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read identity keys: %w", err)
	}

	keys, err := ParseKeys(data)
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

		keys.keys = append(keys.keys, newKey([]byte(line)))
	}

	if len(keys.keys) == 0 {
		return nil, errors.New("no key in it: write one of at least 32 characters, for example of `openssl rand -base64 48`")
	}

	return keys, nil
}

func newKey(secret []byte) key {
	sum := sha256.Sum256(append([]byte("hyperfleet.io/identity key "), secret...))

	return key{id: hex.EncodeToString(sum[:])[:idDigits], secret: secret}
}

// String names the keys without what is in them.
func (k *Keys) String() string {
	ids := make([]string, 0, len(k.keys))
	for _, key := range k.keys {
		ids = append(ids, key.id)
	}

	return "identity keys " + strings.Join(ids, ", ")
}

// GoString is String, for %#v.
func (k *Keys) GoString() string { return k.String() }

// LogValue is String, for slog.
func (k *Keys) LogValue() slog.Value { return slog.StringValue(k.String()) }
