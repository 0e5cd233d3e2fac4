// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"strings"

	virtv1 "kubevirt.io/api/core/v1"
)

// judge asks KubeVirt's own webhook, where it is at hand, once for each state of a machine's
// spec, and says where it comes to another verdict than Validate.
func (c *Cluster) judge(ctx context.Context, vm *virtv1.VirtualMachine, wrong []string) error {
	if c.options.Judge == nil {
		return nil
	}

	c.mu.Lock()
	known := c.judged[vm.UID] == vm.Generation
	c.judged[vm.UID] = vm.Generation
	c.mu.Unlock()

	if known {
		return nil
	}

	causes, err := c.options.Judge(ctx, vm)

	switch {
	case err != nil:
		return fmt.Errorf("judge: %w", err)
	case len(causes) > 0 && len(wrong) == 0:
		c.violate(vm, "VirtualMachine", "KubeVirt itself: "+strings.Join(causes, ", "))
	case len(causes) == 0 && len(wrong) > 0:
		return fmt.Errorf("judge: KubeVirt itself lets it in, and not for %s", strings.Join(wrong, ", "))
	}

	return nil
}
