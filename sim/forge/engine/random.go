// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"encoding/hex"
)

// RandomHex returns the given number of random bytes as hexadecimal text.
func RandomHex(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

// NewUUID returns a random UUID of version 4.
func NewUUID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	text := hex.EncodeToString(raw)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
