// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// maxBoundaries bounds the table; an undisturbed life has far fewer.
const maxBoundaries = 200

// crashes ends the process at each call in turn, before its effect and after it, and has
// a new one go on with what the claim has on record. It must end with one machine that
// was started once, and then with nothing.
func crashes(t *testing.T, make New, deleting bool) {
	t.Helper()

	reached := true

	for n := 1; reached && n <= maxBoundaries; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			e := newEnv(t, make)
			c := e.claim(1)

			if deleting {
				e.mustCreate(e.connect(operatorA), c)
				reached = e.crashAt(n, func(ctx context.Context, p hypervisor.Provider) error { return remove(ctx, p, c.ref()) })
			} else {
				reached = e.crashAt(n, func(ctx context.Context, p hypervisor.Provider) error {
					_, err := create(ctx, p, c)

					return err
				})
				e.resume(c)
			}

			e.mustRemove(e.connect(operatorA), c)
			e.settled()
			e.nothingLeft()
		})
	}

	if reached {
		t.Errorf("the life has more than %d calls", maxBoundaries)
	}
}

// resume goes on in a new process.
func (e *env) resume(c *claim) {
	e.Helper()
	e.mustCreate(e.connect(operatorA), c)
	e.only(c, 1)
}

// settled waits until what the dead process had asked for is over: a call of its may
// have been on its way still, and then a new process's sweep finds what it made.
func (e *env) settled() {
	e.Helper()

	p := e.connect(operatorA)

	all, err := p.List(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	for _, m := range all {
		e.Errorf("left after the removal: %+v", m)
	}
}

// crashAt runs do in a process that dies at the n-th boundary. It tells whether that was
// reached.
func (e *env) crashAt(n int, do func(context.Context, hypervisor.Provider) error) bool {
	e.Helper()

	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()

	var (
		mu    sync.Mutex
		count int
		died  string
	)

	stop := e.OnCall(func(b Boundary) {
		mu.Lock()
		defer mu.Unlock()

		count++
		if count == n {
			died = fmt.Sprintf("%s (before: %t)", b.What, b.Before)

			cancel()
		}
	})

	conn := e.Connect(e.T, e.options(operatorA))
	err := do(ctx, conn)

	stop()
	conn.Close()

	mu.Lock()
	defer mu.Unlock()

	switch {
	case died != "":
		e.Logf("died at %s", died)
	case err != nil && !errors.Is(err, context.Canceled):
		e.Fatal(err)
	}

	return died != ""
}
