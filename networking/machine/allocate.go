// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// exhaustedRetry is how soon a machine without an address looks again without being woken:
// the address registry wakes it when there is one.
const exhaustedRetry = 5 * time.Minute

// allocate gives the machine its addresses, and has them in the status before anything
// uses them.
func allocate(ctx context.Context, s *scope) step.Result {
	if s.vm == nil {
		s.machine.Status.Phase = v1alpha1.KubevirtMachinePending
	}

	config := s.machine.Spec.BootstrapNetworkConfig
	if config == nil {
		return step.Done().WithReason("DHCP", "the machine asks DHCP for its addresses")
	}

	if len(s.machine.Status.AllocatedBootstrapAddresses[config.Interface]) > 0 {
		return s.confirm()
	}

	pool := s.machine.Labels[v1alpha1.LabelNodePool]
	if pool == "" {
		return s.stall("NoNodePool", fmt.Sprintf(
			"label %s names no KubevirtNodePool: a machine's addresses are given out of its pool's", v1alpha1.LabelNodePool))
	}

	network, err := kubevirt.NetworkOf(s.machine)
	if err != nil {
		return s.stall("NetworkNotFound", err.Error())
	}

	got, err := s.Addresses.Acquire(pools.Request{
		Network: network, Pool: kubevirt.PoolName(s.machine.Namespace, pool), Owner: kubevirt.Owner(s.machine),
		Wake: s.changed.For(client.ObjectKeyFromObject(s.machine)),
	})
	if err != nil {
		return s.without(ctx, err)
	}

	s.machine.Status.AllocatedBootstrapAddresses = map[string][]string{config.Interface: words(got)}
	s.machine.Status.BootstrapNetwork = network

	// Whatever becomes of this write, the address registry keeps the addresses for this machine.
	if err := step.Save(ctx); err != nil {
		return step.Fail(fmt.Errorf("save allocated addresses: %w", err))
	}

	s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "AddressesAllocated", "Allocate", "%s", join(got))

	return step.Done().WithReason("Allocated", join(got))
}

// confirm checks that the addresses on record are the machine's in the address registry as well: a
// status that was edited by hand may give one to two machines.
func (s *scope) confirm() step.Result {
	addresses, err := s.addresses()
	if err != nil {
		return s.stall("InvalidAddresses", err.Error())
	}

	if err := restore(s.Addresses, s.machine); err != nil {
		return s.stall("AddressConflict", err.Error())
	}

	return step.Done().WithReason("Allocated", join(addresses))
}

// addresses are those in the status.
func (s *scope) addresses() ([]netip.Prefix, error) {
	return read(s.machine.Status.AllocatedBootstrapAddresses[s.machine.Spec.BootstrapNetworkConfig.Interface])
}

func read(texts []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(texts))

	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read status.allocatedBootstrapAddresses: %q: it must be an address with its prefix length", text)
		}

		out = append(out, prefix)
	}

	return out, nil
}

// without says why there is no address.
func (s *scope) without(ctx context.Context, err error) step.Result {
	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted):
		message := exhausted.LogMessage(s.machine.Spec.BootstrapNetworkConfig.Interface)
		log.FromContext(ctx).Info(message, "pool", exhausted.Pool, "network", exhausted.Network, "family", exhausted.Family.String())

		return step.Wait(exhaustedRetry, alloc.ReasonExhausted, message+": "+exhausted.Error())
	case errors.Is(err, alloc.ErrNoPool):
		return step.Wait(exhaustedRetry, "PoolNotReady",
			"its KubevirtNodePool has no valid addresses on the machine's network: see condition ValidNetworkConfig there")
	default:
		return step.Fail(err)
	}
}

// stall stops until a person acts.
func (s *scope) stall(reason, message string) step.Result {
	s.machine.Status.Phase = v1alpha1.KubevirtMachineFailed

	return step.Stall(reason, message)
}

func words(addresses []netip.Prefix) []string {
	out := make([]string, 0, len(addresses))
	for _, a := range addresses {
		out = append(out, a.String())
	}

	return out
}

func join(addresses []netip.Prefix) string { return fmt.Sprintf("%v", addresses) }
