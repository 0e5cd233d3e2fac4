// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// EndTimeout is how long a program may take to end. It is less than 20 seconds, which the documentation
// promises, and less than the 30 seconds after which Kubernetes kills a container.
const EndTimeout = 18 * time.Second

// NotifyContext returns a context that ends on SIGINT, on SIGTERM, or when parent ends. A second signal then
// kills the process. If stop is not called within EndTimeout after the context has ended, the process exits
// with code 1, because a call of another server may never return. Call stop when nothing runs any more.
func NotifyContext(parent context.Context) (ctx context.Context, stop func()) {
	if parent == nil {
		parent = context.Background()
	}

	ctx, release := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	stopped := make(chan struct{})

	go func() {
		<-ctx.Done()
		release() // removes the handler, so that a second signal kills the process

		select {
		case <-stopped:
		case <-time.After(EndTimeout):
			fmt.Fprintf(os.Stderr, "%s: exit: the program did not end within %s, because a call of another server did not return\n",
				filepath.Base(os.Args[0]), EndTimeout)
			os.Exit(1)
		}
	}()

	return ctx, sync.OnceFunc(func() {
		close(stopped)
		release()
	})
}
