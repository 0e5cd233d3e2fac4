// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// stallExposure stalls and sets the same reason and message on ServiceExposureReady, whose own step does
// not run.
func stallExposure(reason, message string) step.Result {
	return step.Stall(reason, message).WithCondition(v1alpha1.ConditionServiceExposureReady, metav1.ConditionFalse, reason, message)
}

// checkAddresses checks that the bridge can have all its addresses. No other Service or bridge may have
// them, and either one IPAddressPool has all of them or the bridge may create a pool for them. MetalLB
// allocates all addresses of a Service from one pool.
func checkAddresses(ctx context.Context, s *scope) step.Result {
	var pools []string

	for _, vip := range hypershift.VirtualIPs(s.bridge) {
		pool, result := s.checkAddress(ctx, vip)
		if !result.IsDone() {
			return result
		}

		pools = append(pools, pool)
	}

	if slices.ContainsFunc(pools, func(pool string) bool { return pool != pools[0] }) {
		return stallExposure(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"no IPAddressPool has all of %s, but MetalLB allocates the addresses of a Service from one pool: add all of them to one pool",
			s.bridge.Spec.MetalLBVirtualIP))
	}

	s.pool = pools[0]

	return step.Done()
}

// checkAddress checks that the bridge can have one address. It returns the name of the IPAddressPool
// that has the address, and the empty string if the bridge has to create the pool.
func (s *scope) checkAddress(ctx context.Context, vip string) (poolName string, result step.Result) {
	holder, err := s.findAddressHolder(ctx, vip)
	if err != nil {
		return "", step.Fail(err)
	}

	if holder != "" {
		return "", stallExposure(v1alpha1.ReasonVIPConflict,
			fmt.Sprintf("%s has the address %s: choose another address, or release it there", holder, vip))
	}

	pool, err := s.findPool(ctx, vip)
	if err != nil {
		return "", step.Fail(err)
	}

	namespace := hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name)

	switch {
	case pool == nil && !s.canCreatePool(vip):
		return "", stallExposure(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"no IPAddressPool has the address %s, and bridge.addressRanges do not allow to create a pool for it: "+
				"choose another address, or create a pool that has it", vip))
	case pool == nil:
		return "", step.Done()
	case !hypershift.CanServe(pool, namespace):
		return "", stallExposure(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"IPAddressPool %s has the address %s but does not serve namespace %s: "+
				"add the namespace to its serviceAllocation.namespaces",
			pool.GetName(), vip, namespace))
	case hypershift.IsAvoided(pool, vip):
		return "", stallExposure(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"IPAddressPool %s has the address %s but never assigns it, because avoidBuggyIPs is true: choose another address",
			pool.GetName(), vip))
	default:
		if result := s.checkServiceSelectors(ctx, pool, namespace, vip); !result.IsDone() {
			return "", result
		}

		return pool.GetName(), step.Done()
	}
}

// checkServiceSelectors checks that an IPAddressPool serves the Service of the API server, if HyperShift has created
// the Service already. Its labels are not known before.
func (s *scope) checkServiceSelectors(ctx context.Context, pool *unstructured.Unstructured, namespace, vip string) step.Result {
	var service corev1.Service

	err := s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: hypershift.APIServerService}, &service)

	switch {
	case apierrors.IsNotFound(err):
		return step.Done()
	case err != nil:
		return step.Fail(fmt.Errorf("get Service %s/%s: %w", namespace, hypershift.APIServerService, err))
	case hypershift.SelectsService(pool, service.Labels):
		return step.Done()
	default:
		return stallExposure(v1alpha1.ReasonVIPNotInPool, fmt.Sprintf(
			"IPAddressPool %s has the address %s but its serviceSelectors do not select Service %s, which has the labels %q: "+
				"add a selector to serviceAllocation.serviceSelectors",
			pool.GetName(), vip, client.ObjectKeyFromObject(&service), labels.FormatLabels(service.Labels)))
	}
}

// findAddressHolder returns who else has the address, for example "Service a/b", and the empty string if
// nobody else has it. If the bridge's own Service has the address, nobody else can have it.
func (s *scope) findAddressHolder(ctx context.Context, vip string) (string, error) {
	var services corev1.ServiceList
	if err := s.Client.List(ctx, &services, client.MatchingFields{indexAddress: vip}); err != nil {
		return "", fmt.Errorf("list Services with address %s: %w", vip, err)
	}

	ownNamespace := hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name)
	holder := ""

	for i := range services.Items {
		service := &services.Items[i]

		switch {
		case service.Namespace != ownNamespace:
			holder = "Service " + client.ObjectKeyFromObject(service).String()
		case hasAddress(service, vip):
			return "", nil
		}
	}

	first, err := s.findOwner(ctx, indexAddress, vip)
	if err == nil && first != client.ObjectKeyFromObject(s.bridge) {
		holder = "bridge " + first.String()
	}

	return holder, err
}

// hasAddress returns whether a load balancer has assigned the address to the Service.
func hasAddress(service *corev1.Service, ip string) bool {
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IP == ip {
			return true
		}
	}

	return false
}

// findPool returns the IPAddressPool that has the address and does not belong to the bridge, and nil if
// there is none. It looks pools up by the CIDRs that contain the address.
func (s *scope) findPool(ctx context.Context, vip string) (*unstructured.Unstructured, error) {
	addr, err := netip.ParseAddr(vip)
	if err != nil {
		return nil, fmt.Errorf("parse address %q: %w", vip, err)
	}

	for _, prefix := range address.EnclosingCIDRs(addr) {
		pools := &unstructured.UnstructuredList{}
		pools.SetGroupVersionKind(hypershift.IPAddressPoolKind())

		err := s.Cache.List(ctx, pools, client.InNamespace(s.MetalLBNamespace), client.MatchingFields{indexAddress: prefix})
		if err != nil {
			return nil, fmt.Errorf("list IPAddressPools with %s: %w", prefix, err)
		}

		for i := range pools.Items {
			if !s.isOwn(&pools.Items[i]) {
				return &pools.Items[i], nil
			}
		}
	}

	return nil, nil //nolint:nilnil // no such pool is no error
}

// canCreatePool returns whether the configuration allows the operator to create a pool with the address.
func (s *scope) canCreatePool(vip string) bool {
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
