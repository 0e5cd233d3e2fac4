// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
)

// hypervisors are the providers by spec.provider. kube leads to the operator's own
// cluster, which machines of KubeVirt are made on unless a kubeconfig says otherwise.
func hypervisors(kube *rest.Config, t *Transports) map[string]hypervisor.Factory {
	onKubeVirt := kubevirt.Factory(kube)

	return map[string]hypervisor.Factory{
		v1alpha1.ProviderProxmox: proxmox.New,
		v1alpha1.ProviderKubeVirt: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			options.Transport = t.kubevirt

			return onKubeVirt(config, options)
		},
	}
}

// kubevirt wraps the transport of calls to a Kubernetes API server with KubeVirt.
func (t *Transports) kubevirt(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("kubevirt", kubevirt.Operation, t.leading(next))
}
