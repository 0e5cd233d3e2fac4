// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"errors"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// TestPoolErrNamesCommand checks that the error of a pool that cannot be listed has the command that starts the pool.
func TestPoolErrNamesCommand(t *testing.T) {
	t.Parallel()

	h := &host{
		config:  hypervisor.Host{Name: "host-1", StoragePool: "runners"},
		session: &session{poolErr: errors.New("storage pool is not active")},
	}

	if err := h.poolErr(); err == nil || !strings.Contains(err.Error(), "`virsh pool-start runners`") ||
		!strings.Contains(err.Error(), "of host host-1") {
		t.Errorf("want the command that starts the pool, got %v", err)
	}
}
