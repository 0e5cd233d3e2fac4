// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgetest

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
)

// Program is a simulated program that runs inside the test process.
type Program struct {
	Stop func() // like SIGTERM
	done chan int
	out  lockedBuffer
}

// Start runs main until main returns or the test ends. main returns the exit code.
func Start(t testing.TB, main func(ctx context.Context, out io.Writer) int) *Program {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &Program{Stop: cancel, done: make(chan int, 1)}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p.done <- main(ctx, &p.out)
	}()
	t.Cleanup(func() { cancel(); <-finished })
	return p
}

// Wait waits until the program ends, and returns its exit code.
func (p *Program) Wait() int { return <-p.done }

// Output returns the program's output so far.
func (p *Program) Output() string { return p.out.String() }

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
