// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	configv1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const networkingName = "hyperfleet-networking"

// The area's Deployment differs from the other one only in its name, its configuration, the missing port, and
// the permission to send pings.
func TestNetworkingDeployment(t *testing.T) {
	t.Parallel()

	objects := buildKustomization(t, baseDir)
	runners := findObject[appsv1.Deployment](t, objects, "Deployment", operatorName).Spec.Template
	networking := findObject[appsv1.Deployment](t, objects, "Deployment", networkingName).Spec.Template

	want := runners.Spec.DeepCopy()
	want.ServiceAccountName = networkingName
	want.TopologySpreadConstraints[0].LabelSelector.MatchLabels["app.kubernetes.io/name"] = networkingName
	want.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "65532 65532"}} // the area pings machines
	want.Volumes[0].ConfigMap.Name = networkingName
	want.Containers[0].Ports = slices.DeleteFunc(want.Containers[0].Ports, func(p corev1.ContainerPort) bool {
		return p.Name == "webhooks"
	})

	if diff := cmp.Diff(*want, networking.Spec); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}

	for what, selector := range map[string]map[string]string{
		"Service":       findObject[corev1.Service](t, objects, "Service", networkingName+"-metrics").Spec.Selector,
		"NetworkPolicy": findObject[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", networkingName).Spec.PodSelector.MatchLabels,
	} {
		if !matchesSelector(selector, networking.Labels) {
			t.Errorf("the %s does not select its pods", what)
		}
	}

	settings := configv1.Default()

	text := findObject[corev1.ConfigMap](t, objects, "ConfigMap", networkingName).Data[operatorConfig]
	if err := strictyaml.Decode(operatorConfig, []byte(text), &settings); err != nil {
		t.Fatal(err)
	}

	if !slices.Equal(settings.Controllers, []string{"networking"}) || settings.Webhooks.BindAddress != "0" || !settings.LeaderElection.Enabled {
		t.Errorf("its configuration is %+v", settings)
	}
}
