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

// exposedReady looks at the Service that HyperShift makes for the API server.
func exposedReady(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKey{
		Namespace: hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name), Name: hypershift.APIServerService,
	}
	service := &corev1.Service{}

	pending := v1alpha1.ReasonNodePortPending
	if s.bridge.Spec.ExposeThroughLoadBalancer {
		pending = v1alpha1.ReasonLoadBalancerPending
	}

	err := s.Client.Get(ctx, key, service)
	if apierrors.IsNotFound(err) {
		return step.Wait(lookAgain, pending, fmt.Sprintf("HyperShift has not made Service %s yet", key)+s.hyperShiftFailed())
	}

	if err != nil {
		return step.Fail(fmt.Errorf("get Service %s: %w", key, err))
	}

	s.service = service

	want := corev1.ServiceTypeNodePort
	if s.bridge.Spec.ExposeThroughLoadBalancer {
		want = corev1.ServiceTypeLoadBalancer
	}

	if service.Spec.Type != want {
		return step.Wait(lookAgain, v1alpha1.ReasonServiceCreationFailed,
			fmt.Sprintf("Service %s is of type %s, and not %s", key, service.Spec.Type, want))
	}

	if s.bridge.Spec.ExposeThroughLoadBalancer {
		return s.balanced(ctx)
	}

	for _, port := range service.Spec.Ports {
		if port.NodePort > 0 {
			return step.Done().WithReason(v1alpha1.ReasonNodePortReady, "the API server is at "+
				net.JoinHostPort(hypershift.NodeAddress(s.cluster), strconv.Itoa(int(port.NodePort))))
		}
	}

	return step.Wait(lookAgain, pending, fmt.Sprintf("Service %s has no node port yet", key))
}

// hyperShiftFailed is the error of HyperShift's last pass over the HostedCluster, as the end of
// a sentence; empty where it had none.
func (s *scope) hyperShiftFailed() string {
	c := meta.FindStatusCondition(hypershift.Conditions(s.cluster), hypershift.ReconciliationSucceeded)
	if c == nil || c.Status != metav1.ConditionFalse || c.Message == "" {
		return ""
	}

	return ": " + c.Message
}

// balanced looks whether MetalLB has given the Service the bridge's address, and asks for it
// where MetalLB might give another.
func (s *scope) balanced(ctx context.Context) step.Result {
	vip, key := s.bridge.Spec.MetalLBVirtualIP, client.ObjectKeyFromObject(s.service)
	asked := s.service.Annotations[hypershift.AnnotationAddress]

	var have []string
	for _, ingress := range s.service.Status.LoadBalancer.Ingress {
		have = append(have, ingress.IP)
	}

	wanted := hypershift.VirtualIPs(s.bridge)
	all := !slices.ContainsFunc(wanted, func(ip string) bool { return !assigned(s.service, ip) })

	// A pool of the bridge's own has just its addresses.
	if asked != vip && (s.pool != "" || asked != "" || len(have) > 0 && !all) {
		if err := s.ask(ctx, vip); err != nil {
			return step.ForError(s.refused(err, "patch", s.service, v1alpha1.ReasonServiceCreationFailed), lookAgain)
		}
	}

	if all {
		port := int32(0)
		if ports := s.service.Spec.Ports; len(ports) > 0 {
			port = ports[0].Port
		}

		var at []string
		for _, ip := range wanted {
			at = append(at, net.JoinHostPort(ip, strconv.Itoa(int(port))))
		}

		return step.Done().WithReason(v1alpha1.ReasonLoadBalancerReady, "the API server is at "+strings.Join(at, " and "))
	}

	if len(have) > 0 {
		return step.Wait(lookAgain, v1alpha1.ReasonLoadBalancerPending,
			fmt.Sprintf("Service %s has the address %s, and not %s yet", key, strings.Join(have, ","), vip)+s.otherFamilies())
	}

	return step.Wait(lookAgain, v1alpha1.ReasonLoadBalancerPending,
		fmt.Sprintf("MetalLB has not given Service %s the address %s yet", key, vip)+s.otherFamilies())
}

// otherFamilies is why MetalLB gives no such addresses where the Service has other families, as
// the end of a sentence. HyperShift asks for both where the management cluster has both
// (kas/service.go), and MetalLB gives a Service what it has.
func (s *scope) otherFamilies() string {
	var want []corev1.IPFamily

	for _, ip := range hypershift.VirtualIPs(s.bridge) {
		family := corev1.IPv4Protocol
		if strings.Contains(ip, ":") {
			family = corev1.IPv6Protocol
		}

		want = append(want, family)
	}

	have := s.service.Spec.IPFamilies
	missing := slices.ContainsFunc(want, func(f corev1.IPFamily) bool { return !slices.Contains(have, f) })

	if len(have) == 0 || !missing {
		return ""
	}

	return fmt.Sprintf(": the Service is of %v, as the management cluster's Services are, and MetalLB gives no others: "+
		"choose an address of that", have)
}

// ask has the Service ask MetalLB for an address. HyperShift leaves annotations alone that
// are not its own.
func (s *scope) ask(ctx context.Context, vip string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{hypershift.AnnotationAddress: vip}},
	})
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}

	asking := s.service.DeepCopy()

	to := client.RawPatch(types.MergePatchType, patch)

	return s.Client.Patch(ctx, asking, to, client.FieldOwner(fieldOwner))
}
