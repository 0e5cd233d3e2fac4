// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// notExposed stops the list, and says so in ServiceExposureReady, whose own step comes
// later.
func notExposed(reason, message string) step.Result {
	return step.Stall(reason, message).Also(v1alpha1.ConditionServiceExposureReady, metav1.ConditionFalse, reason, message)
}

// addressFree looks whether the addresses may be had: nobody else has them, and one pool does,
// or a pool may be made for them. MetalLB gives a Service addresses of one pool alone.
func addressFree(ctx context.Context, s *scope) step.Result {
	var pools []string

	for _, vip := range hypershift.VirtualIPs(s.bridge) {
		pool, result := s.free(ctx, vip)
		if !result.IsDone() {
			return result
		}

		pools = append(pools, pool)
	}

	if slices.ContainsFunc(pools, func(pool string) bool { return pool != pools[0] }) {
		return notExposed(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"no IPAddressPool has all of %s, and MetalLB gives a Service addresses of one pool alone: put them into one",
			s.bridge.Spec.MetalLBVirtualIP))
	}

	s.pool = pools[0]

	return step.Done()
}

// free looks whether one address may be had, and of which pool: of one that is to be made where
// that has no name.
func (s *scope) free(ctx context.Context, vip string) (string, step.Result) {
	by, err := s.takenBy(ctx, vip)
	if err != nil {
		return "", step.Fail(err)
	}

	if by != "" {
		return "", notExposed(v1alpha1.ReasonVIPConflict,
			fmt.Sprintf("%s has the address %s: choose another, or free it", by, vip))
	}

	pool, err := s.poolWith(ctx, vip)
	if err != nil {
		return "", step.Fail(err)
	}

	namespace := hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name)

	switch {
	case pool == nil && !s.mayMakePool(vip):
		return "", notExposed(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"no IPAddressPool has the address %s, and it is not in bridge.addressRanges: choose another, or make a pool with it", vip))
	case pool == nil:
		return "", step.Done()
	case !hypershift.Serves(pool, namespace):
		return "", notExposed(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"IPAddressPool %s has the address %s and does not serve namespace %s: add it to serviceAllocation.namespaces",
			pool.GetName(), vip, namespace))
	default:
		return pool.GetName(), step.Done()
	}
}

// takenBy says who else has the address; empty if nobody has. What the bridge's own Service
// has can't be another's, whoever wants it.
func (s *scope) takenBy(ctx context.Context, vip string) (string, error) {
	var services corev1.ServiceList
	if err := s.Client.List(ctx, &services, client.MatchingFields{indexAddress: vip}); err != nil {
		return "", fmt.Errorf("list Services with address %s: %w", vip, err)
	}

	own := hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name)
	taken := ""

	for i := range services.Items {
		service := &services.Items[i]

		switch {
		case service.Namespace != own:
			taken = "Service " + client.ObjectKeyFromObject(service).String()
		case assigned(service, vip):
			return "", nil
		}
	}

	first, err := s.first(ctx, indexAddress, vip)
	if err == nil && first != client.ObjectKeyFromObject(s.bridge) {
		taken = "bridge " + first.String()
	}

	return taken, err
}

// assigned says whether a Service has an address.
func assigned(service *corev1.Service, ip string) bool {
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IP == ip {
			return true
		}
	}

	return false
}

// poolWith is the pool that has an address and is not the bridge's own; nil if there is
// none. Pools are looked up by the CIDRs around the address.
func (s *scope) poolWith(ctx context.Context, vip string) (*unstructured.Unstructured, error) {
	addr, err := netip.ParseAddr(vip)
	if err != nil {
		return nil, fmt.Errorf("parse address %q: %w", vip, err)
	}

	for _, around := range address.Around(addr) {
		pools := &unstructured.UnstructuredList{}
		pools.SetGroupVersionKind(hypershift.IPAddressPoolKind())

		err := s.Cache.List(ctx, pools, client.InNamespace(s.MetalLBNamespace), client.MatchingFields{indexAddress: around})
		if err != nil {
			return nil, fmt.Errorf("list IPAddressPools with %s: %w", around, err)
		}

		for i := range pools.Items {
			if !s.ours(&pools.Items[i]) {
				return &pools.Items[i], nil
			}
		}
	}

	return nil, nil //nolint:nilnil // none is no error
}

func (s *scope) mayMakePool(vip string) bool {
	addr, err := netip.ParseAddr(vip)
	if err != nil {
		return false
	}

	for _, r := range s.Ranges {
		if r.Contains(addr) {
			return true
		}
	}

	return false
}

// poolMade makes a pool of the one address, and announces it, where no other pool has it:
// MetalLB allows no two pools with one address.
func poolMade(ctx context.Context, s *scope) step.Result {
	if s.pool != "" {
		return step.Done()
	}

	for _, want := range []*unstructured.Unstructured{
		hypershift.Pool(s.bridge, s.MetalLBNamespace), hypershift.Advertisement(s.bridge, s.MetalLBNamespace),
	} {
		have, err := s.read(ctx, s.Cache, want.GroupVersionKind(), client.ObjectKeyFromObject(want))
		if err == nil {
			_, err = s.ensure(ctx, have, want, v1alpha1.ReasonServiceCreationFailed)
		}

		if err != nil {
			result := step.ForError(err, lookAgain)

			return result.Also(v1alpha1.ConditionServiceExposureReady, metav1.ConditionFalse, result.Reason(), result.Message())
		}
	}

	return step.Done()
}
