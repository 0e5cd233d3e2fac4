// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// checkServiceExposure checks the Service that HyperShift creates for the API server: its type, and its
// address or node port.
func checkServiceExposure(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKey{
		Namespace: hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name), Name: hypershift.APIServerService,
	}
	service := &corev1.Service{}

	desiredType, pendingReason := corev1.ServiceTypeNodePort, v1alpha1.ReasonNodePortPending
	if s.bridge.Spec.ExposeThroughLoadBalancer {
		desiredType, pendingReason = corev1.ServiceTypeLoadBalancer, v1alpha1.ReasonLoadBalancerPending
	}

	err := s.Client.Get(ctx, key, service)
	if apierrors.IsNotFound(err) {
		return step.Wait(resyncInterval, pendingReason,
			fmt.Sprintf("HyperShift has not created Service %s yet", key)+s.reconciliationError())
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get Service %s: %w", key, err))
	}

	s.service = service

	if service.Spec.Type != desiredType {
		return step.Wait(resyncInterval, v1alpha1.ReasonServiceCreationFailed,
			fmt.Sprintf("Service %s has type %s and must have type %s", key, service.Spec.Type, desiredType))
	}

	if s.bridge.Spec.ExposeThroughLoadBalancer {
		return s.checkLoadBalancer(ctx)
	}

	for _, port := range service.Spec.Ports {
		if port.NodePort > 0 {
			return step.Done().WithReason(v1alpha1.ReasonNodePortReady, "the API server is available at "+
				net.JoinHostPort(hypershift.NodeAddress(s.hostedCluster), strconv.Itoa(int(port.NodePort))))
		}
	}

	return step.Wait(resyncInterval, pendingReason, fmt.Sprintf("Service %s has no node port yet", key))
}

// reconciliationError returns a suffix for messages: ": " and the error of HyperShift's last reconcile of
// the HostedCluster. It returns "" if no error is known.
func (s *scope) reconciliationError() string {
	c := meta.FindStatusCondition(hypershift.Conditions(s.hostedCluster), hypershift.ReconciliationSucceeded)
	if c == nil || c.Status != metav1.ConditionFalse || c.Message == "" {
		return ""
	}

	return ": " + c.Message
}

// checkLoadBalancer checks that MetalLB has assigned the bridge's addresses to the Service. It requests
// the addresses if MetalLB could assign other ones.
func (s *scope) checkLoadBalancer(ctx context.Context) step.Result {
	vip, key := s.bridge.Spec.MetalLBVirtualIP, client.ObjectKeyFromObject(s.service)
	requested := s.service.Annotations[hypershift.AnnotationAddress]
	isRequested := requested == vip && s.service.Annotations[hypershift.AnnotationAddressDeprecated] == vip

	var current []string
	for _, ingress := range s.service.Status.LoadBalancer.Ingress {
		current = append(current, ingress.IP)
	}

	vips := hypershift.VirtualIPs(s.bridge)
	hasAll := !slices.ContainsFunc(vips, func(ip string) bool { return !hasAddress(s.service, ip) })

	// The bridge's own pool has no other addresses, so nothing has to be requested there.
	canGetOtherAddress := s.pool != "" || requested != "" || len(current) > 0 && !hasAll
	if !isRequested && canGetOtherAddress {
		if err := s.requestAddress(ctx, vip); err != nil {
			return step.FromError(s.newWriteError(err, "patch", s.service, v1alpha1.ReasonServiceCreationFailed), resyncInterval)
		}
	}

	if hasAll {
		port := int32(0)
		if ports := s.service.Spec.Ports; len(ports) > 0 {
			port = ports[0].Port
		}

		var endpoints []string
		for _, ip := range vips {
			endpoints = append(endpoints, net.JoinHostPort(ip, strconv.Itoa(int(port))))
		}

		return step.Done().WithReason(v1alpha1.ReasonLoadBalancerReady,
			"the API server is available at "+strings.Join(endpoints, " and "))
	}

	if len(current) > 0 {
		return step.Wait(resyncInterval, v1alpha1.ReasonLoadBalancerPending,
			fmt.Sprintf("Service %s has the address %s and waits for %s", key, strings.Join(current, ","), vip)+s.explainFamilyMismatch())
	}

	return step.Wait(resyncInterval, v1alpha1.ReasonLoadBalancerPending,
		fmt.Sprintf("MetalLB has not assigned the address %s to Service %s yet", vip, key)+s.explainFamilyMismatch())
}

// explainFamilyMismatch returns the end of a sentence which says that MetalLB cannot assign the addresses
// because the Service has other IP families. It returns the empty string if the families match. HyperShift
// requests both families if the management cluster has both (kas/service.go), and MetalLB assigns only the
// families that the Service has.
func (s *scope) explainFamilyMismatch() string {
	var desired []corev1.IPFamily

	for _, ip := range hypershift.VirtualIPs(s.bridge) {
		family := corev1.IPv4Protocol
		if strings.Contains(ip, ":") {
			family = corev1.IPv6Protocol
		}

		desired = append(desired, family)
	}

	current := s.service.Spec.IPFamilies
	lacksFamily := slices.ContainsFunc(desired, func(f corev1.IPFamily) bool { return !slices.Contains(current, f) })

	if len(current) == 0 || !lacksFamily {
		return ""
	}

	families := make([]string, 0, len(current))
	for _, family := range current {
		families = append(families, string(family))
	}

	return fmt.Sprintf(": the Service has the IP families %s, as all Services of the management cluster, and MetalLB assigns "+
		"no other addresses: choose an address of these families", strings.Join(families, ", "))
}

// requestAddress annotates the Service so that MetalLB of any version assigns the addresses in vip. HyperShift does
// not change annotations of others.
func (s *scope) requestAddress(ctx context.Context, vip string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			hypershift.AnnotationAddress: vip, hypershift.AnnotationAddressDeprecated: vip,
		}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}

	service := s.service.DeepCopy()

	mergePatch := client.RawPatch(types.MergePatchType, patch)

	return s.Client.Patch(ctx, service, mergePatch, client.FieldOwner(fieldOwner))
}
