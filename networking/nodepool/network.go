// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/dustin/go-humanize/english"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Reasons of the condition ValidNetworkConfig.
const (
	reasonNetworkNotFound = "NetworkNotFound"
	reasonInvalid         = "InvalidAddresses"
	reasonOverlap         = "OverlappingAddresses"
)

// validateNetwork validates the pool's network configuration, and adds its addresses to the address registry.
func validateNetwork(_ context.Context, s *scope) step.Result {
	name := kubevirt.PoolName(s.pool.Namespace, s.pool.Name)

	if s.pool.Spec.BootstrapNetworkConfig == nil {
		s.Addresses.RemovePool(name)

		return s.warnTooFewAddresses(step.Done().WithReason("DHCP", "new machines get their addresses from DHCP"), nil)
	}

	entry, reason, err := buildPool(s.pool)
	if err != nil {
		return step.Stall(reason, err.Error())
	}

	err = s.Addresses.SetPool(entry, s.changed.EnqueueFunc(client.ObjectKeyFromObject(s.pool)))

	var overlap *alloc.OverlapError
	if errors.As(err, &overlap) {
		return step.Stall(reasonOverlap, s.describeOverlap(overlap))
	}

	if err != nil {
		return step.Fail(err)
	}

	return warnGuessedPrefixes(s.warnTooFewAddresses(step.Done(), entry.Addresses), entry.Addresses)
}

// describeOverlap returns a message with the owner of the other pool, if the owner is of another kind.
func (s *scope) describeOverlap(overlap *alloc.OverlapError) string {
	owner := ""
	if s.PoolOwner != nil {
		owner = s.PoolOwner(overlap.Other)
	}

	if owner == "" {
		return overlap.Error()
	}

	return fmt.Sprintf("pool %s overlaps the pool of %s on network %s at %s: use different addresses in each pool, "+
		"or exclude the shared ones from one pool", overlap.Pool, owner, overlap.Network, overlap.Range)
}

// buildPool returns the pool for the address registry. With an error, it also returns the reason for the
// condition.
func buildPool(pool *v1alpha1.KubevirtNodePool) (built pools.Pool, reason string, err error) {
	network, err := kubevirt.BootstrapNetwork(pool)
	if err != nil {
		return pools.Pool{}, reasonNetworkNotFound, err
	}

	addresses, err := kubevirt.NewAddressPool(pool)
	if err != nil {
		return pools.Pool{}, reasonInvalid, err
	}

	return pools.Pool{Network: network.Definition, Cluster: kubevirt.ClusterName(pool), Addresses: addresses}, "", nil
}

// warnGuessedPrefixes adds the condition PrefixLengthGuessed. A guessed prefix length can be too long.
// Machines then send packets for other addresses of their network to the gateway.
func warnGuessedPrefixes(result step.Result, addresses *alloc.Pool) step.Result {
	const condition = v1alpha1.ConditionPrefixLengthGuessed

	guessed := addresses.GuessedSubnets()
	if len(guessed) == 0 {
		return result.WithCondition(condition, metav1.ConditionFalse, "Known", "")
	}

	networks := make([]string, 0, len(guessed))
	for _, subnet := range guessed {
		networks = append(networks, subnet.String())
	}

	return result.WithCondition(condition, metav1.ConditionTrue, "Guessed",
		"the prefix lengths of the machines' networks "+strings.Join(networks, ", ")+
			" are guesses: set prefixLengthV4 and prefixLengthV6")
}

// warnTooFewAddresses adds the condition AddressesFewerThanReplicas. It is True if the pool has fewer
// addresses than it can have machines.
func (s *scope) warnTooFewAddresses(result step.Result, addresses *alloc.Pool) step.Result {
	const condition = v1alpha1.ConditionAddressesFewerThanReplicas

	if addresses == nil {
		return result.WithCondition(condition, metav1.ConditionFalse, "DHCP", "")
	}

	maxMachines := s.pool.Spec.Replicas
	if s.pool.Spec.MaxReplicas != nil {
		maxMachines = *s.pool.Spec.MaxReplicas
	}

	if capacity := addresses.MachineCapacity(); capacity < uint64(maxMachines) { //nolint:gosec // G115: not negative, by the schema
		return result.WithCondition(condition, metav1.ConditionTrue, "TooFewAddresses", fmt.Sprintf(
			"the pool has addresses for %d machines, but it can have %d machines: add addresses, or lower maxReplicas",
			capacity, maxMachines))
	}

	return result.WithCondition(condition, metav1.ConditionFalse, "Enough", "")
}

// reportExhaustion adds the condition IPPoolExhausted, and writes the usage of the pool's addresses into
// the status.
func (s *scope) reportExhaustion(result step.Result) step.Result {
	const condition = v1alpha1.ConditionIPPoolExhausted

	status, found := s.Addresses.Status(kubevirt.PoolName(s.pool.Namespace, s.pool.Name))
	if !found {
		s.pool.Status.Addresses = nil

		return result.WithCondition(condition, metav1.ConditionFalse, "DHCP", "")
	}

	s.pool.Status.Addresses = &v1alpha1.PoolAddresses{
		Network: status.Network, Free: clampInt64(status.CountAllocatable()),
		Machines: clampInt64(machineCapacity(status)),
		Waiting:  int32(min(status.Waiting, math.MaxInt32)), //nolint:gosec // G115: bounded
	}

	if status.Waiting == 0 {
		return result.WithCondition(condition, metav1.ConditionFalse, "AddressesLeft",
			fmt.Sprintf("the pool has free addresses for %d more machines", status.CountAllocatable()))
	}

	return result.WithCondition(condition, metav1.ConditionTrue, alloc.ReasonExhausted, fmt.Sprintf(
		"waiting for an address: %s; add addresses to bootstrapNetworkConfig, or lower replicas",
		english.Plural(status.Waiting, "machine", "")))
}

// machineCapacity returns the number of machines for which the pool has addresses, used and free.
func machineCapacity(s pools.Status) uint64 {
	full := s
	full.IPv4.Free, full.IPv6.Free = s.IPv4.Size, s.IPv6.Size

	return full.CountAllocatable()
}

// clampInt64 converts a number to int64. It returns the largest int64 for a larger number.
func clampInt64(n uint64) int64 {
	return int64(min(n, math.MaxInt64)) //nolint:gosec // G115: bounded
}

// NewPoolReader returns a reader that adds the addresses of all node pools to an address registry.
func NewPoolReader(apiReader client.Reader) pools.PoolReader {
	return func(ctx context.Context) ([]pools.PoolObject, error) {
		listed, err := watch.ListAll[*v1alpha1.KubevirtNodePool](ctx, apiReader, &v1alpha1.KubevirtNodePoolList{})
		if err != nil {
			return nil, fmt.Errorf("list node pools: %w", err)
		}

		var out []pools.PoolObject

		for _, pool := range listed {
			if pool.Spec.BootstrapNetworkConfig != nil {
				out = append(out, pools.PoolObject{Object: pool, Put: func(registry *pools.AddressRegistry) { putPool(ctx, registry, pool) }})
			}
		}

		return out, nil
	}
}

// putPool adds a pool's addresses to the address registry. It logs an invalid pool, which the reconciler
// also reports in a condition.
func putPool(ctx context.Context, registry *pools.AddressRegistry, pool *v1alpha1.KubevirtNodePool) {
	entry, _, err := buildPool(pool)
	if err == nil {
		err = registry.SetPool(entry, nil)
	}

	if err != nil {
		log.FromContext(ctx).Info("cannot use the addresses of a node pool",
			"namespace", pool.Namespace, "name", pool.Name, "reason", err.Error())
	}
}
