// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
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
		v1alpha1.ProviderLibvirt: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			options.WrapCall = t.wrapCall(libvirt.System)

			return libvirt.New(config, options)
		},
		v1alpha1.ProviderExternal: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			options.WrapCall = t.wrapCall(external.System)

			return external.New(config, options)
		},
	}
}

// wrapCall returns a function that measures a call that is not HTTP, and refuses a call that changes something when
// this process may no longer be the leader. system is the name in metrics.
func (t *Transports) wrapCall(system string) func(context.Context, hypervisor.Call, func() error) error {
	return func(_ context.Context, call hypervisor.Call, do func() error) error {
		if call.Write && t.checkLease != nil {
			if err := t.checkLease(); err != nil {
				return err
			}
		}

		start := time.Now()
		err := do()
		t.calls.Observe(system, call.Operation, time.Since(start), err)

		return err
	}
}

// wrapKubeVirt wraps the transport of calls to a Kubernetes API server with KubeVirt.
func (t *Transports) wrapKubeVirt(next http.RoundTripper) http.RoundTripper {
	return t.calls.WrapTransport("kubevirt", kubevirt.OperationName, t.guardWrites(next))
}
