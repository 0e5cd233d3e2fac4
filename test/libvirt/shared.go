// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/lease"
)

// LeaseKind is the kind of server in the request for a test run's host. The response is a Lease.
const LeaseKind = "libvirt"

// Lease describes the host of a test run.
type Lease struct {
	// Dir is the directory of the host.
	Dir string
}

// Main calls use with a host that other test programs use as well, runs the tests, and exits with their exit
// code.
func Main(m *testing.M, use func(*Host)) { os.Exit(run(m, use)) }

func run(m *testing.M, use func(*Host)) int {
	host, release, err := Acquire(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	use(host)

	code := m.Run()

	if err := release(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return code
}

// Acquire leases the host of the test run. If there is no test run, it starts a host. The caller calls release
// at the end.
func Acquire(ctx context.Context) (host *Host, release func() error, err error) {
	var leased Lease

	held, err := lease.Acquire(LeaseKind, &leased)
	if err != nil {
		return nil, nil, fmt.Errorf("get a libvirt host: %w", err)
	}

	if held != nil {
		return &Host{Dir: leased.Dir}, held.Release, nil
	}

	host, err = Open(ctx, Options{})
	if err != nil {
		return nil, nil, err
	}

	return host, host.Close, nil
}
