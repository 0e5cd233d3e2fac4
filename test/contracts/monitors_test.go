// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// readSelector returns the label selector of a monitor.
func readSelector(t *testing.T, file string) labels.Selector {
	t.Helper()

	text, _, err := unstructured.NestedMap(readObjects(t, "../../deploy/monitoring/"+file)[0].Object, "spec", "selector")
	if err != nil {
		t.Fatal(err)
	}

	var by metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(text, &by); err != nil {
		t.Fatal(err)
	}

	selector, err := metav1.LabelSelectorAsSelector(&by)
	if err != nil {
		t.Fatal(err)
	}

	return selector
}

// Exactly one monitor selects each Deployment with metrics. The operators' metrics use https, and the
// platform's do not.
func TestMonitorsSelectDeployments(t *testing.T) {
	t.Parallel()

	services, pods := readSelector(t, "servicemonitor.yaml"), readSelector(t, "podmonitor.yaml")
	objects := slices.Concat(buildKustomization(t, baseDir), buildKustomization(t, "../../deploy/bridge"), buildKustomization(t, platformDir), buildKustomization(t, platformDir+"/adapter"))
	read := 0

	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}

		deployment := findObject[appsv1.Deployment](t, objects, "Deployment", object.GetName())
		template := deployment.Spec.Template

		if !slices.ContainsFunc(template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == "metrics" }) {
			t.Errorf("%s has no port for metrics", deployment.Name)
		}

		by := 0
		if pods.Matches(labels.Set(template.Labels)) {
			by++
		}

		for _, other := range objects {
			if other.GetKind() != "Service" || !services.Matches(labels.Set(other.GetLabels())) {
				continue
			}

			service := findObject[corev1.Service](t, objects, "Service", other.GetName())
			if matchesSelector(service.Spec.Selector, template.Labels) && slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "metrics" }) {
				by++
			}
		}

		if by != 1 {
			t.Errorf("%s is read by %d monitors", deployment.Name, by)
		}

		read++
	}

	if read != 6 {
		t.Errorf("read %d Deployments", read)
	}
}
