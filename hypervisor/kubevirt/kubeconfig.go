// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"errors"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
)

var errNoLocal = errors.New("connect to the operator's own cluster: it is not known: set spec.kubevirt.kubeconfigSecretRef")

// restConfig leads to the cluster's API server: by its kubeconfig, or the operator's own.
func restConfig(config hypervisor.Config, local *rest.Config) (*rest.Config, error) {
	if len(config.Kubeconfig) == 0 {
		if local == nil {
			return nil, rejected("KubeconfigMissing", errNoLocal.Error())
		}

		return rest.CopyConfig(local), nil
	}

	made, err := kubeconfig.Rest(config.Kubeconfig)
	if err != nil {
		return nil, rejected("KubeconfigInvalid", err.Error())
	}

	return made, nil
}

func rejected(reason, message string) error {
	return &hypervisor.Error{Kind: hypervisor.Rejected, Reason: reason, Message: message}
}
