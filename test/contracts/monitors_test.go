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

// selectorOf is what a monitor selects by.
func selectorOf(t *testing.T, file string) labels.Selector {
	t.Helper()

	text, _, err := unstructured.NestedMap(read(t, "../../deploy/monitoring/"+file)[0].Object, "spec", "selector")
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

// Every Deployment that is shipped and has metrics is read by one monitor, and by one only: the
// operators' are https, and the platform's are not.
func TestMonitorsSelect(t *testing.T) {
	t.Parallel()

	services, pods := selectorOf(t, "servicemonitor.yaml"), selectorOf(t, "podmonitor.yaml")
	objects := slices.Concat(build(t, baseDir), build(t, "../../deploy/bridge"), build(t, platformDir), build(t, platformDir+"/adapter"))
	read := 0

	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}

		deployment := get[appsv1.Deployment](t, objects, "Deployment", object.GetName())
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

			service := get[corev1.Service](t, objects, "Service", other.GetName())
			if matches(service.Spec.Selector, template.Labels) && slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "metrics" }) {
				by++
			}
		}

		if by != 1 {
			t.Errorf("%s is read by %d monitors", deployment.Name, by)
		}

		read++
	}

	if read != 6 {
		t.Errorf("looked at %d Deployments", read)
	}
}
