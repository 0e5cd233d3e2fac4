// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

// Content is the text or program that a part carries, with its digest.
type Content struct {
	data string
	sum  string
}

// NewText returns the content of a rendered text.
func NewText(text string) Content {
	sum := sha256.Sum256([]byte(text))

	return Content{data: text, sum: hex.EncodeToString(sum[:])}
}

// NewBinary returns the content of a program or an archive. It copies the data.
func NewBinary(data []byte) Content { return NewText(string(data)) }

// Size returns the size in bytes.
func (c Content) Size() int { return len(c.data) }

// String returns the content.
func (c Content) String() string { return c.data }

// SHA256 returns the SHA-256 digest in lower-case hexadecimal. It returns an empty string for empty
// content.
func (c Content) SHA256() string {
	if c.Size() == 0 {
		return ""
	}

	return c.sum
}

// Source is a file of the operator that becomes content of plans.
type Source struct {
	// Field is the configuration field that names the file. It is used in errors.
	Field string
	// Path of the file. If it is empty, ReadFiles leaves the content unchanged.
	Path   string
	Target *Content
}

// ReadFiles reads files into contents. It reads as many files as possible and returns one joined
// error for those that can't be read.
func ReadFiles(files ...Source) error {
	var errs []error

	for _, file := range files {
		if file.Path == "" {
			continue
		}

		data, err := os.ReadFile(file.Path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", file.Field, err))

			continue
		}

		*file.Target = NewBinary(data)
	}

	return errors.Join(errs...)
}
