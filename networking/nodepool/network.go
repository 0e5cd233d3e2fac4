// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/dustin/go-humanize/english"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Reasons of ValidNetworkConfig.
const (
	reasonNetworkNotFound = "NetworkNotFound"
	reasonInvalid         = "InvalidAddresses"
	reasonOverlap         = "OverlappingAddresses"
)

// networkValid puts the pool's addresses into the address registry.
func networkValid(_ context.Context, s *scope) step.Result {
	name := kubevirt.PoolName(s.pool.Namespace, s.pool.Name)

	if s.pool.Spec.BootstrapNetworkConfig == nil {
		s.Addresses.RemovePool(name)

		return s.compare(step.Done().WithReason("DHCP", "new machines ask DHCP for their addresses"), nil)
	}

	entry, reason, err := entryOf(s.pool)
	if err != nil {
		return step.Stall(reason, err.Error())
	}

	err = s.Addresses.SetPool(entry, s.changed.For(client.ObjectKeyFromObject(s.pool)))

	var overlap *alloc.OverlapError
	if errors.As(err, &overlap) {
		return step.Stall(reasonOverlap, s.overlaps(overlap))
	}

	if err != nil {
		return step.Fail(err)
	}

	return guesses(s.compare(step.Done(), entry.Addresses), entry.Addresses)
}

// overlaps names the other pool as users know it.
func (s *scope) overlaps(overlap *alloc.OverlapError) string {
	owner := ""
	if s.Owner != nil {
		owner = s.Owner(overlap.Other)
	}

	if owner == "" {
		return overlap.Error()
	}

	return fmt.Sprintf("pool %s overlaps that of %s on network %s at %s: give each pool addresses of its own, "+
		"or exclude these in one of them", overlap.Pool, owner, overlap.Network, overlap.Range)
}

// entryOf is the pool as the address registry takes it; with an error comes the reason to show.
func entryOf(pool *v1alpha1.KubevirtNodePool) (pools.Pool, string, error) {
	network, err := kubevirt.Bootstrap(pool)
	if err != nil {
		return pools.Pool{}, reasonNetworkNotFound, err
	}

	addresses, err := kubevirt.AddressPool(pool)
	if err != nil {
		return pools.Pool{}, reasonInvalid, err
	}

	return pools.Pool{Network: network.Definition, Cluster: kubevirt.ClusterName(pool), Addresses: addresses}, "", nil
}

// guesses warns of prefix lengths that nobody has said: machines take the addresses outside of
// them for ones behind the gateway.
func guesses(result step.Result, addresses *alloc.Pool) step.Result {
	const condition = v1alpha1.ConditionPrefixLengthGuessed

	guessed := addresses.Guessed()
	if len(guessed) == 0 {
		return result.Also(condition, metav1.ConditionFalse, "Known", "")
	}

	return result.Also(condition, metav1.ConditionTrue, "Guessed", fmt.Sprintf(
		"machines are told that their network is %v, which nobody has said: give prefixLengthV4 and prefixLengthV6", guessed))
}

// compare warns of fewer addresses than machines there may be.
func (s *scope) compare(result step.Result, addresses *alloc.Pool) step.Result {
	const condition = v1alpha1.ConditionAddressesFewerThanReplicas

	if addresses == nil {
		return result.Also(condition, metav1.ConditionFalse, "DHCP", "")
	}

	most := s.pool.Spec.Replicas
	if s.pool.Spec.MaxReplicas != nil {
		most = *s.pool.Spec.MaxReplicas
	}

	if suffice := addresses.Machines(); suffice < uint64(most) { //nolint:gosec // G115: not negative, by the schema
		return result.Also(condition, metav1.ConditionTrue, "TooFewAddresses", fmt.Sprintf(
			"the addresses suffice for %d machines, and there may be %d: add addresses, or lower maxReplicas", suffice, most))
	}

	return result.Also(condition, metav1.ConditionFalse, "Enough", "")
}

// exhausted reports machines that wait for an address, and the pool's numbers.
func (s *scope) exhausted(result step.Result) step.Result {
	const condition = v1alpha1.ConditionIPPoolExhausted

	status, there := s.Addresses.Status(kubevirt.PoolName(s.pool.Namespace, s.pool.Name))
	if !there {
		s.pool.Status.Addresses = nil

		return result.Also(condition, metav1.ConditionFalse, "DHCP", "")
	}

	s.pool.Status.Addresses = &v1alpha1.PoolAddresses{
		Network: status.Network, Free: shown(status.Machines()),
		Machines: shown(machines(status)),
		Waiting:  int32(min(status.Waiting, math.MaxInt32)), //nolint:gosec // G115: bounded
	}

	if status.Waiting == 0 {
		return result.Also(condition, metav1.ConditionFalse, "AddressesLeft",
			fmt.Sprintf("the addresses suffice for %d more machines", status.Machines()))
	}

	return result.Also(condition, metav1.ConditionTrue, alloc.ReasonExhausted, fmt.Sprintf(
		"waiting for an address: %s; add addresses to bootstrapNetworkConfig, or lower replicas",
		english.Plural(status.Waiting, "machine", "")))
}

// machines is how many the pool's addresses suffice for.
func machines(s pools.Status) uint64 {
	full := s
	full.IPv4.Free, full.IPv6.Free = s.IPv4.Size, s.IPv6.Size

	return full.Machines()
}

// shown is a number as the status has room for it.
func shown(n uint64) int64 {
	return int64(min(n, math.MaxInt64)) //nolint:gosec // G115: bounded
}

// Reader finds the node pools' addresses for an address registry.
func Reader(live client.Reader) pools.PoolReader {
	return func(ctx context.Context) ([]pools.Found, error) {
		listed, err := objects.All[*v1alpha1.KubevirtNodePool](ctx, live, &v1alpha1.KubevirtNodePoolList{})
		if err != nil {
			return nil, fmt.Errorf("list node pools: %w", err)
		}

		var out []pools.Found

		for _, pool := range listed {
			if pool.Spec.BootstrapNetworkConfig != nil {
				out = append(out, pools.Found{Object: pool, Put: func(b *pools.AddressRegistry) { put(ctx, b, pool) }})
			}
		}

		return out, nil
	}
}

// put puts a pool's addresses into the address registry. What is wrong with them, its own pass says in
// a condition.
func put(ctx context.Context, b *pools.AddressRegistry, pool *v1alpha1.KubevirtNodePool) {
	entry, _, err := entryOf(pool)
	if err == nil {
		err = b.SetPool(entry, nil)
	}

	if err != nil {
		log.FromContext(ctx).Info("a node pool's addresses can't be given",
			"namespace", pool.Namespace, "name", pool.Name, "reason", err.Error())
	}
}
