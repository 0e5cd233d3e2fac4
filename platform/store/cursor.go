// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
)

// cursorVersion is the first byte of each cursor.
const cursorVersion = 1

// cursor is a place in the change feed: after the change seq of the feed epoch.
type cursor struct {
	epoch, seq int64
}

// text writes the cursor in at most 28 characters.
func (c cursor) text() string {
	raw := []byte{cursorVersion}
	raw = binary.AppendUvarint(raw, uint64(c.epoch)) //nolint:gosec // neither is negative
	raw = binary.AppendUvarint(raw, uint64(c.seq))   //nolint:gosec // as above

	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseCursor(text string) (cursor, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || raw[0] != cursorVersion {
		return cursor{}, malformed(text)
	}

	epoch, size := binary.Uvarint(raw[1:])
	if size <= 0 || epoch > math.MaxInt64 {
		return cursor{}, malformed(text)
	}

	rest := raw[1+size:]

	seq, size := binary.Uvarint(rest)
	if size <= 0 || size != len(rest) || seq > math.MaxInt64 {
		return cursor{}, malformed(text)
	}

	return cursor{epoch: int64(epoch), seq: int64(seq)}, nil
}

func malformed(text string) error {
	return fmt.Errorf("cursor %.40q: %w: use one of an earlier answer", text, ErrCursorMalformed)
}
