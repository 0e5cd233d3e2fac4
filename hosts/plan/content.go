// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
)

// Content is what a part carries: a text or a program, with its digest, which is made
// once.
type Content struct {
	data string
	sum  string
}

// Text is content that was rendered.
func Text(text string) Content {
	sum := sha256.Sum256([]byte(text))

	return Content{data: text, sum: hex.EncodeToString(sum[:])}
}

// Binary is content that was built: a program or an archive. It keeps a copy.
func Binary(data []byte) Content { return Text(string(data)) }

// Size in bytes.
func (c Content) Size() int { return len(c.data) }

// String gives the content.
func (c Content) String() string { return c.data }

// SHA256 in lower case hexadecimal; empty for no content.
func (c Content) SHA256() string {
	if c.Size() == 0 {
		return ""
	}

	return c.sum
}
