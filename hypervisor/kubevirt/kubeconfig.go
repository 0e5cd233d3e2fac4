// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
)

// restConfig leads to the cluster's API server: by its kubeconfig, or the operator's own.
func restConfig(config hypervisor.Config, local *rest.Config) (*rest.Config, error) {
	if len(config.Kubeconfig) == 0 {
		if local == nil {
			return nil, hypervisor.Errorf(hypervisor.Rejected, "KubeconfigMissing",
				"connect to the operator's own cluster: it is not known: set spec.kubevirt.kubeconfigSecretRef")
		}

		return rest.CopyConfig(local), nil
	}

	made, err := kubeconfig.Rest(config.Kubeconfig)
	if err != nil {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "KubeconfigInvalid", "%v", err)
	}

	return made, nil
}
