// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// Source is a file of the operator's that becomes content of plans.
type Source struct {
	// Field of the configuration that names it, for errors.
	Field string
	// Path; empty: there is none, and the content stays as it is.
	Path string
	Into *Content
}

// ReadFiles reads files into contents: all that can be read, and an error for each that
// can't.
func ReadFiles(read func(path string) ([]byte, error), files ...Source) error {
	var errs []error

	for _, file := range files {
		if file.Path == "" {
			continue
		}

		data, err := read(file.Path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", file.Field, err))

			continue
		}

		*file.Into = Binary(data)
	}

	return errors.Join(errs...)
}
