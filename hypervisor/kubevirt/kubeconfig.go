// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
)

// newRESTConfig returns the configuration for the cluster's API server. It is the configuration in the
// kubeconfig, or a copy of local if the cluster has no kubeconfig.
func newRESTConfig(config hypervisor.Config, local *rest.Config) (*rest.Config, error) {
	if len(config.Kubeconfig) == 0 {
		if local == nil {
			return nil, hypervisor.Errorf(hypervisor.Rejected, "KubeconfigMissing",
				"connect to the operator's own cluster: the operator has no configuration for it: "+
					"set spec.kubevirt.kubeconfigSecretRef")
		}

		return rest.CopyConfig(local), nil
	}

	parsed, err := credential.RESTConfig(config.Kubeconfig)
	if err != nil {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "KubeconfigInvalid", "%v", err)
	}

	return parsed, nil
}
