// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"sync"
)

// Buffer is a writer that stores all data. It is safe for concurrent use, and its zero value is ready to
// use.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

// Write stores data. It never fails.
func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.data.Write(data)
}

// String returns all data that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.data.String()
}
