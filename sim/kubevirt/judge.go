// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"strings"

	virtv1 "kubevirt.io/api/core/v1"
)

// compareWithWebhook compares the result of Validate with that of KubeVirt's own webhook, if there is
// one (Options.Webhook). It does so once for each generation of a VirtualMachine. If only the webhook
// rejects the VirtualMachine, it records a violation. If only Validate does, it returns an error.
func (c *Cluster) compareWithWebhook(ctx context.Context, vm *virtv1.VirtualMachine, violations []string) error {
	if c.options.Webhook == nil {
		return nil
	}

	c.mu.Lock()
	known := c.reviewedGenerations[vm.UID] == vm.Generation
	c.reviewedGenerations[vm.UID] = vm.Generation
	c.mu.Unlock()

	if known {
		return nil
	}

	causes, err := c.options.Webhook(ctx, vm)

	switch {
	case err != nil:
		return fmt.Errorf("call KubeVirt's webhook: %w", err)
	case len(causes) > 0 && len(violations) == 0:
		c.recordViolation(vm, "VirtualMachine", "KubeVirt's own webhook: "+strings.Join(causes, ", "))
	case len(causes) == 0 && len(violations) > 0:
		return fmt.Errorf("compare with KubeVirt's webhook: it admits what Validate rejects: %s", strings.Join(violations, ", "))
	}

	return nil
}
