// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// ConsoleLogs stores the output of machines' serial consoles; see report.Logs.
type ConsoleLogs interface {
	KeepConsole(ctx context.Context, claim *v1alpha1.MachineClaim, text string) error
}

// keepConsole stores the output of the machine's serial console before the machine is deleted. It stores nothing if the
// provider keeps no output. A machine is deleted even if its output cannot be stored.
func keepConsole(ctx context.Context, s *scope) step.Result {
	if s.Consoles == nil || s.claim.Status.VMRef == nil || s.consolesKept.has(s.claim) {
		return step.Done()
	}

	provider, _ := s.Clusters.Get(s.claim.Status.VMRef.HypervisorCluster)

	reader, ok := hypervisor.Find[hypervisor.ConsoleReader](provider)
	if !ok {
		return step.Done()
	}

	text, err := reader.ReadConsole(ctx, s.machineRef())
	if err == nil && len(text) > 0 {
		err = s.Consoles.KeepConsole(ctx, s.claim, string(text))
	}

	if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
		log.FromContext(ctx).Info("could not store the output of the serial console", "error", err.Error())
	}

	s.consolesKept.add(s.claim)

	return step.Done()
}
