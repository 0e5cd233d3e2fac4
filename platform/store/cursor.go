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

// cursor is a position in the change feed: after the change with the number seq and the random token. If a
// restore of the database has removed this change, a later change can have the number but not the token.
type cursor struct {
	token, seq int64
}

// encode returns the cursor as text of at most 28 characters.
func (c cursor) encode() string {
	raw := []byte{cursorVersion}
	raw = binary.AppendUvarint(raw, uint64(c.token)) //nolint:gosec // token and seq are never negative
	raw = binary.AppendUvarint(raw, uint64(c.seq))   //nolint:gosec // as above

	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseCursor(text string) (cursor, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || raw[0] != cursorVersion {
		return cursor{}, newMalformedError(text)
	}

	token, size := binary.Uvarint(raw[1:])
	if size <= 0 || token > math.MaxInt64 {
		return cursor{}, newMalformedError(text)
	}

	rest := raw[1+size:]

	seq, size := binary.Uvarint(rest)
	if size <= 0 || size != len(rest) || seq > math.MaxInt64 {
		return cursor{}, newMalformedError(text)
	}

	return cursor{token: int64(token), seq: int64(seq)}, nil
}

func newMalformedError(text string) error {
	return fmt.Errorf("cursor %.40q: %w: use a cursor from an earlier response", text, ErrCursorMalformed)
}
