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

// Names in the manifests: the ConfigMap and the Deployment of the runners area, the Service of the webhook
// server, and the environment variable that overrides webhooks.plainHTTP.
const (
	runnersName     = "hyperfleet-runners"
	webhooksService = "hyperfleet-webhooks"
	plainHTTPEnv    = "HYPERFLEET_WEBHOOKS_PLAIN_HTTP"
)

// checkReceiver reports whether the requests of CI platforms and machines to the operator are protected by
// TLS. It reports nothing if the ConfigMap of the manifests does not exist.
func (d *doctor) checkReceiver(ctx context.Context) {
	const subject = "webhooks and machines"

	servesPlainHTTP, err := d.servesPlainHTTP(ctx)

	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		d.reportUnreadable(subject, err)

		return
	case !servesPlainHTTP:
		d.report.addf(OK, subject, "the operator serves TLS")

		return
	}

	ingresses := &networkingv1.IngressList{}
	if err := d.client.List(ctx, ingresses, client.InNamespace(d.operatorNamespace)); err != nil {
		d.reportUnreadable(subject, err)
	}

	for i := range ingresses.Items {
		if ingress := &ingresses.Items[i]; len(ingress.Spec.TLS) > 0 && routesToWebhooks(ingress) {
			d.report.addf(OK, subject, "plain HTTP behind Ingress %s/%s, which terminates TLS", d.operatorNamespace, ingress.Name)

			return
		}
	}

	d.report.addf(Warning, subject, "the operator serves plain HTTP (webhooks.plainHTTP of %s), and no Ingress in namespace %s "+
		"terminates TLS in front of it: remove the setting, or terminate TLS in front of the operator",
		runnersName, d.operatorNamespace)
}

// servesPlainHTTP reports whether the operator serves plain HTTP. The environment variable of the Deployment
// overrides the setting in the ConfigMap. If the configuration is not valid YAML, it returns false.
func (d *doctor) servesPlainHTTP(ctx context.Context) (bool, error) {
	name := client.ObjectKey{Namespace: d.operatorNamespace, Name: runnersName}

	file := &corev1.ConfigMap{}
	if err := d.client.Get(ctx, name, file); err != nil {
		return false, err
	}

	var parsed struct {
		Webhooks struct{ PlainHTTP bool }
	}
	if err := sigsyaml.Unmarshal([]byte(file.Data["operator.yaml"]), &parsed); err != nil {
		return false, nil //nolint:nilerr // the operator itself reports the error in more detail
	}

	deployment := &appsv1.Deployment{}
	if err := d.client.Get(ctx, name, deployment); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}

	for _, container := range deployment.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if plain, err := strconv.ParseBool(variable.Value); variable.Name == plainHTTPEnv && err == nil {
				return plain, nil
			}
		}
	}

	return parsed.Webhooks.PlainHTTP, nil
}

func routesToWebhooks(ingress *networkingv1.Ingress) bool {
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
