// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"errors"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	errNoKubeconfig = errors.New("read kubeconfig: it is no kubeconfig with a current context")
	errReachesOut   = errors.New("read kubeconfig: it runs programs or names files: only what is in it is used")
)

// Rest leads to a kubeconfig's API server. Errors do not quote it.
func Rest(data []byte) (*rest.Config, error) {
	parsed, err := clientcmd.Load(data)
	if err != nil {
		return nil, errNoKubeconfig
	}

	for _, user := range parsed.AuthInfos {
		if user.Exec != nil || user.AuthProvider != nil || user.ClientCertificate+user.ClientKey+user.TokenFile != "" {
			return nil, errReachesOut
		}
	}

	for _, cluster := range parsed.Clusters {
		if cluster.CertificateAuthority != "" {
			return nil, errReachesOut
		}
	}

	config, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errNoKubeconfig
	}

	return config, nil
}
