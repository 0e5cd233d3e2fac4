// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// The log has a line for each machine that waits for an address of an exhausted pool, and the condition says the same.
func TestExhaustedPoolIsLogged(t *testing.T) {
	t.Parallel()

	const want = "No available IPs in pool for interface eno101"

	var lines []string

	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	s := &scope{machine: &v1alpha1.KubevirtMachine{Spec: v1alpha1.KubevirtMachineSpec{
		BootstrapNetworkConfig: &v1alpha1.VirtualMachineBootstrapNetworkConfig{Interface: "eno101"},
	}}}

	exhausted := fmt.Errorf("acquire: %w", &alloc.ExhaustedError{Network: "ci/machines", Pool: "ci/workers", Size: 2})

	result := s.waitForAddress(logr.NewContext(t.Context(), logger), exhausted)
	if !strings.HasPrefix(result.Message(), want) || result.Reason() != alloc.ReasonExhausted || result.RequeueAfter() <= 0 {
		t.Errorf("waits %s, %s: %s", result.RequeueAfter(), result.Reason(), result.Message())
	}

	if len(lines) != 1 || !strings.Contains(lines[0], `"msg"="`+want+`"`) || !strings.Contains(lines[0], `"pool"="ci/workers"`) {
		t.Errorf("the log is %q", lines)
	}
}
