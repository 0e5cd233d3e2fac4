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

// hypervisors returns the factories of the hypervisor providers, by spec.provider. kube is the configuration
// of the operator's own cluster. Machines of KubeVirt run there, unless the HypervisorCluster has a
// kubeconfig.
func hypervisors(kube *rest.Config, t *Transports) map[string]hypervisor.Factory {
	onKubeVirt := kubevirt.Factory(kube)

	return map[string]hypervisor.Factory{
		v1alpha1.ProviderProxmox: proxmox.New,
		v1alpha1.ProviderKubeVirt: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			options.WrapTransport = t.wrapKubeVirt

			return onKubeVirt(config, options)
		},
	}
}

// wrapKubeVirt wraps the transport of calls to a Kubernetes API server with KubeVirt.
func (t *Transports) wrapKubeVirt(next http.RoundTripper) http.RoundTripper {
	return t.calls.WrapTransport("kubevirt", kubevirt.OperationName, t.guardWrites(next))
}
