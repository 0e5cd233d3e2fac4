// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

// What the manifests call the receiver's configuration, its pods and its Service.
const (
	runnersName     = "hyperfleet-runners"
	webhooksService = "hyperfleet-webhooks"
	plainVariable   = "HYPERFLEET_WEBHOOKS_PLAIN_HTTP"
)

// receiver says when CI platforms and machines speak with the operator in the clear. Where
// nothing of the manifests is there, there is nothing to say.
func (d *doctor) receiver(ctx context.Context) {
	const subject = "webhooks and machines"

	plain, err := d.plain(ctx)

	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		d.unseen(subject, err)

		return
	case !plain:
		d.report.addf(Fine, subject, "the operator serves TLS")

		return
	}

	ingresses := &networkingv1.IngressList{}
	if err := d.client.List(ctx, ingresses, client.InNamespace(d.operator)); err != nil {
		d.unseen(subject, err)
	}

	for i := range ingresses.Items {
		if one := &ingresses.Items[i]; len(one.Spec.TLS) > 0 && leadsToWebhooks(one) {
			d.report.addf(Fine, subject, "plain HTTP behind Ingress %s/%s, which ends TLS", d.operator, one.Name)

			return
		}
	}

	d.report.addf(Warning, subject, "the operator serves plain HTTP (webhooks.plainHTTP of %s), and no Ingress of namespace %s "+
		"that ends TLS leads to it: take the setting away, or see that TLS is ended before it", runnersName, d.operator)
}

// plain is what the ConfigMap says, or the variable that counts before it.
func (d *doctor) plain(ctx context.Context) (bool, error) {
	name := client.ObjectKey{Namespace: d.operator, Name: runnersName}

	file := &corev1.ConfigMap{}
	if err := d.client.Get(ctx, name, file); err != nil {
		return false, err
	}

	var said struct {
		Webhooks struct{ PlainHTTP bool }
	}
	if err := sigsyaml.Unmarshal([]byte(file.Data["operator.yaml"]), &said); err != nil {
		return false, nil //nolint:nilerr // the operator itself says it better
	}

	pods := &appsv1.Deployment{}
	if err := d.client.Get(ctx, name, pods); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}

	for _, container := range pods.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if plain, err := strconv.ParseBool(variable.Value); variable.Name == plainVariable && err == nil {
				return plain, nil
			}
		}
	}

	return said.Webhooks.PlainHTTP, nil
}

func leadsToWebhooks(ingress *networkingv1.Ingress) bool {
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}

		for _, path := range rule.HTTP.Paths {
			if service := path.Backend.Service; service != nil && service.Name == webhooksService {
				return true
			}
		}
	}

	return false
}
