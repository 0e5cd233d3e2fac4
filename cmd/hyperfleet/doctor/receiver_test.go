// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// It says whether machines' tokens come in the clear, and what ends TLS if they do.
func TestReceiver(t *testing.T) { //nolint:paralleltest // it speaks of the whole API server, as all here
	const (
		all    = "\n0 problems, 0 warnings\n"
		byTLS  = "ok        webhooks and machines: the operator serves TLS\n"
		inward = "ok        webhooks and machines: plain HTTP behind Ingress hyperfleet-system/hyperfleet-webhooks, which ends TLS\n"
		open   = "warning   webhooks and machines: the operator serves plain HTTP (webhooks.plainHTTP of hyperfleet-runners), and no Ingress of " +
			"namespace hyperfleet-system that ends TLS leads to it: take the setting away, or see that TLS is ended before it\n" +
			"\n0 problems, 1 warning\n"
	)

	begin := fine[:len(fine)-len(all)]
	meta := metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: "hyperfleet-runners"}

	settings := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"operator.yaml": "webhooks: {bindAddress: ':8443'}"}}
	create(t, settings)
	expect(t, 0, begin+byTLS+all)

	settings.Data["operator.yaml"] = "webhooks: {plainHTTP: true}"
	must(t, env.Client.Update(t.Context(), settings))
	expect(t, 0, begin+open)

	// A variable of the pods counts before the file.
	labels := map[string]string{"app": "operator"}
	pods := &appsv1.Deployment{ObjectMeta: meta}
	pods.Spec.Replicas = new(int32) // nobody is missed
	pods.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	pods.Spec.Template.Labels = labels
	pods.Spec.Template.Spec.Containers = []corev1.Container{{
		Name: "operator", Image: "hyperfleet", Env: []corev1.EnvVar{{Name: "HYPERFLEET_WEBHOOKS_PLAIN_HTTP", Value: "false"}},
	}}
	create(t, pods)
	expect(t, 0, begin+byTLS+all)

	pods.Spec.Template.Spec.Containers[0].Env[0].Value = "true"
	must(t, env.Client.Update(t.Context(), pods))

	kind := networkingv1.PathTypePrefix
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: "hyperfleet-webhooks"}}
	ingress.Spec.Rules = []networkingv1.IngressRule{{Host: "hyperfleet.example.com"}}
	ingress.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "hyperfleet-webhooks", Port: networkingv1.ServiceBackendPort{Name: "webhooks"}},
	}}}}
	create(t, ingress)
	expect(t, 0, begin+open)

	ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"hyperfleet.example.com"}}}
	must(t, env.Client.Update(t.Context(), ingress))
	expect(t, 0, begin+inward+all)
}
