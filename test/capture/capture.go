// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"sync"
)

// Buffer takes what is written to it, from any number of goroutines. The zero value is
// ready.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

// Write takes data; it never fails.
func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.data.Write(data)
}

// String is all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.data.String()
}
