// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

var errNoLocal = errors.New("connect to the operator's own cluster: it is not known: set spec.kubevirt.kubeconfigSecretRef")

// restConfig leads to the cluster's API server: by its kubeconfig, or the operator's own.
//
// A kubeconfig comes from a Secret that others may write. What in it would have the
// operator run programs or read files of its own is refused.
func restConfig(config hypervisor.Config, local *rest.Config) (*rest.Config, error) {
	if len(config.Kubeconfig) == 0 {
		if local == nil {
			return nil, rejected("KubeconfigMissing", errNoLocal.Error())
		}

		return rest.CopyConfig(local), nil
	}

	parsed, err := clientcmd.Load(config.Kubeconfig)
	if err != nil {
		// The cause may quote the input; it stays out.
		return nil, rejected("KubeconfigInvalid", "read kubeconfig: it is no kubeconfig in YAML or JSON")
	}

	if err := selfContained(parsed); err != nil {
		return nil, err
	}

	made, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, rejected("KubeconfigInvalid",
			"read kubeconfig: its current-context must name a context, a cluster and a user that are in it")
	}

	return made, nil
}

// selfContained refuses a kubeconfig that reaches out of itself.
func selfContained(config *clientcmdapi.Config) error {
	for name, user := range config.AuthInfos {
		switch {
		case user == nil:
		case user.Exec != nil, user.AuthProvider != nil:
			return rejected("KubeconfigInvalid", fmt.Sprintf(
				"read kubeconfig: user %q runs a program to authenticate: use a token or a client certificate in it", name))
		case user.ClientCertificate != "", user.ClientKey != "", user.TokenFile != "":
			return rejected("KubeconfigInvalid", fmt.Sprintf(
				"read kubeconfig: user %q names files: put what they hold in it (client-certificate-data, client-key-data, token)",
				name))
		}
	}

	for name, cluster := range config.Clusters {
		if cluster != nil && cluster.CertificateAuthority != "" {
			return rejected("KubeconfigInvalid", fmt.Sprintf(
				"read kubeconfig: cluster %q names a file: put what it holds in certificate-authority-data", name))
		}
	}

	return nil
}

func rejected(reason, message string) error {
	return &hypervisor.Error{Kind: hypervisor.Rejected, Reason: reason, Message: message}
}
