// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
)

// A program does not take the socket of another one that runs, and others than its user and group cannot connect.
func TestSockets(t *testing.T) { //nolint:paralleltest // the umask is that of the process
	address := newSocket(t)
	program := server.Program{
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			return example.Connect(example.NewCloud(""), config, options)
		},
	}

	umask := syscall.Umask(0)
	serve(t, server.Options{Address: address}, program)
	syscall.Umask(umask)

	info, err := os.Stat(strings.TrimPrefix(address, external.UnixScheme))
	if err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("others may connect: %v (%v)", info.Mode(), err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()

	if err := server.Run(ctx, server.Options{Address: address}, program); err == nil || !strings.Contains(err.Error(), "another program listens") {
		t.Errorf("want an error about the other program, got %v", err)
	}
}
