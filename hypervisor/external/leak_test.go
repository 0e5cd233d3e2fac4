// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"context"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func countFiles(t *testing.T) int {
	t.Helper()

	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("this system does not list open files")
	}

	return len(entries)
}

// A cluster that is deleted or changed leaves nothing: no goroutine, no connection, and no session of the program.
func TestCloseLeavesNothing(t *testing.T) { //nolint:paralleltest // it counts the goroutines of the process
	address, hanging, silent := newSocket(t), newSocket(t), newSocket(t)

	serve(t, server.Options{Address: address}, server.Program{
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			p, err := example.Connect(example.NewCloud(""), config, options)

			return rich{Connection: p, closed: &atomic.Int32{}}, err
		},
	})
	serveFake(t, hanging, &fake{check: func(ctx context.Context) (*providerpb.Info, error) {
		<-ctx.Done()

		return nil, ctx.Err()
	}})

	use := func(address string) {
		p, err := external.New(hypervisor.Config{Name: "c", Address: address}, hypervisor.Options{OperatorUID: "o"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()

		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()

		_, _ = p.Check(ctx)

		if opener, ok := hypervisor.Find[hypervisor.Terminal](p); ok {
			if console, err := opener.OpenTerminal(t.Context(), hypervisor.MachineRef{ID: 1}); err == nil {
				_, _ = io.WriteString(console, "left open")
			}
		}
	}
	use(address)

	goroutines, files := runtime.NumGoroutine(), countFiles(t)

	for range 20 {
		for _, one := range []string{address, hanging, silent} {
			use(one)
		}
	}

	timing.WaitUntil(t, "all goroutines and connections have ended", func() bool {
		return runtime.NumGoroutine() <= goroutines && countFiles(t) <= files
	})

	stacks := make([]byte, 1<<20)
	if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "external.(*Provider)") {
		t.Errorf("a goroutine is left:\n%s", all)
	}
}
