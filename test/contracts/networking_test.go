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

// The area's Deployment is the other one's but for its name, its configuration, the
// port that it does not have, and that it may ping.
func TestNetworkingDeployment(t *testing.T) {
	t.Parallel()

	objects := build(t, baseDir)
	runners := get[appsv1.Deployment](t, objects, "Deployment", operatorName).Spec.Template
	networking := get[appsv1.Deployment](t, objects, "Deployment", networkingName).Spec.Template

	want := runners.Spec.DeepCopy()
	want.ServiceAccountName = networkingName
	want.TopologySpreadConstraints[0].LabelSelector.MatchLabels["app.kubernetes.io/name"] = networkingName
	want.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "65532 65532"}} // it pings machines
	want.Volumes[0].ConfigMap.Name = networkingName
	want.Containers[0].Ports = slices.DeleteFunc(want.Containers[0].Ports, func(p corev1.ContainerPort) bool {
		return p.Name == "webhooks"
	})

	if diff := cmp.Diff(*want, networking.Spec); diff != "" {
		t.Errorf("its pod (-want +got):\n%s", diff)
	}

	for what, selector := range map[string]map[string]string{
		"Service":       get[corev1.Service](t, objects, "Service", networkingName+"-metrics").Spec.Selector,
		"NetworkPolicy": get[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", networkingName).Spec.PodSelector.MatchLabels,
	} {
		if !matches(selector, networking.Labels) {
			t.Errorf("the %s does not select its pods", what)
		}
	}

	settings := configv1.Default()

	text := get[corev1.ConfigMap](t, objects, "ConfigMap", networkingName).Data[operatorConfig]
	if err := strictyaml.Decode(operatorConfig, []byte(text), &settings); err != nil {
		t.Fatal(err)
	}

	if !slices.Equal(settings.Controllers, []string{"networking"}) || settings.Webhooks.BindAddress != "0" || !settings.LeaderElection.Enabled {
		t.Errorf("its configuration is %+v", settings)
	}
}
