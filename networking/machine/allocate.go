// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// exhaustedRetry is the delay before a machine without an address is reconciled again. Usually the address
// registry enqueues the machine earlier, when an address is free.
const exhaustedRetry = 5 * time.Minute

// allocate allocates addresses to the machine, and saves them in the status before a later step uses them. An
// existing VirtualMachine keeps its addresses.
func allocate(ctx context.Context, s *scope) step.Result {
	if result := readBack(ctx, s); !result.IsDone() {
		return result
	}

	if s.vm == nil {
		s.machine.Status.Phase = v1alpha1.KubevirtMachinePending
	}

	config := s.machine.Spec.BootstrapNetworkConfig
	if config == nil {
		return step.Done().WithReason("DHCP", "the machine gets its addresses from DHCP")
	}

	if len(s.machine.Status.AllocatedBootstrapAddresses[config.Interface]) > 0 {
		return s.verifyAddresses()
	}

	pool := s.machine.Labels[v1alpha1.LabelNodePool]
	if pool == "" {
		return s.stall("NoNodePool", fmt.Sprintf(
			"the label %s is empty, so the machine has no address pool: set it to the name of a KubevirtNodePool", v1alpha1.LabelNodePool))
	}

	network, err := kubevirt.NetworkKey(s.machine)
	if err != nil {
		return s.stall("NetworkNotFound", err.Error())
	}

	addresses, err := s.Addresses.Acquire(pools.Request{
		Network: network, Pool: kubevirt.PoolName(s.machine.Namespace, pool), Owner: kubevirt.OwnerKey(s.machine),
		Wake: s.changed.EnqueueFunc(client.ObjectKeyFromObject(s.machine)),
	})
	if err != nil {
		return s.waitForAddress(ctx, err)
	}

	s.machine.Status.AllocatedBootstrapAddresses = map[string][]string{config.Interface: toStrings(addresses)}
	s.machine.Status.BootstrapNetwork = network

	// If this write fails, the address registry keeps the addresses for this machine.
	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(fmt.Errorf("save allocated addresses: %w", err))
	}

	s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "AddressesAllocated", "Allocate", "%s", formatAddresses(addresses))

	return step.Done().WithReason("Allocated", formatAddresses(addresses))
}

// verifyAddresses restores the recorded addresses into the address registry, and stalls on a conflict. A
// conflict occurs if a status was edited by hand, so that two machines have the same address.
func (s *scope) verifyAddresses() step.Result {
	addresses, err := s.recordedAddresses()
	if err != nil {
		return s.stall("InvalidAddresses", err.Error())
	}

	if err := restore(s.Addresses, s.machine); err != nil {
		return s.stall("AddressConflict", err.Error())
	}

	return step.Done().WithReason("Allocated", formatAddresses(addresses))
}

// recordedAddresses returns the addresses in the status.
func (s *scope) recordedAddresses() ([]netip.Prefix, error) {
	return parseAddresses(s.machine.Status.AllocatedBootstrapAddresses[s.machine.Spec.BootstrapNetworkConfig.Interface])
}

func parseAddresses(texts []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(texts))

	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse status.allocatedBootstrapAddresses: %q is not an address with a prefix length", text)
		}

		out = append(out, prefix)
	}

	return out, nil
}

// waitForAddress returns the result for a failed allocation. It waits if the pool is exhausted or missing.
func (s *scope) waitForAddress(ctx context.Context, err error) step.Result {
	var (
		exhausted *alloc.ExhaustedError
		unread    *pools.UnreadError
	)

	switch {
	case errors.As(err, &exhausted):
		message := exhausted.LogMessage(s.machine.Spec.BootstrapNetworkConfig.Interface)
		log.FromContext(ctx).Info(message, "pool", exhausted.Pool, "network", exhausted.Network, "family", exhausted.Family.String())

		return step.Wait(exhaustedRetry, alloc.ReasonExhausted, message+": "+exhausted.Error())
	case errors.As(err, &unread):
		return step.Wait(exhaustedRetry, "AddressesNotRead", unread.Error()+": see their conditions")
	case errors.Is(err, alloc.ErrNoPool):
		return step.Wait(exhaustedRetry, "PoolNotReady",
			"the KubevirtNodePool has no valid addresses on the machine's network: see condition ValidNetworkConfig of the pool")
	default:
		return step.Fail(err)
	}
}

// stall sets the phase to Failed and stops until a person acts.
func (s *scope) stall(reason, message string) step.Result {
	s.machine.Status.Phase = v1alpha1.KubevirtMachineFailed

	return step.Stall(reason, message)
}

func toStrings(addresses []netip.Prefix) []string {
	out := make([]string, 0, len(addresses))
	for _, a := range addresses {
		out = append(out, a.String())
	}

	return out
}

func formatAddresses(addresses []netip.Prefix) string {
	return strings.Join(toStrings(addresses), ", ")
}
