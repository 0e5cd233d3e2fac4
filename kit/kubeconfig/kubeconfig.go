// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// maxValues is what a kubeconfig may have. That of one cluster has some twenty.
const maxValues = 2000

var (
	// The cause may quote the input; it stays out.
	errNoKubeconfig = errors.New("read kubeconfig: it is no kubeconfig in YAML or JSON")
	errProxy        = errors.New("read kubeconfig: it names a proxy: take proxy-url out of it, " +
		"the operator calls the API server itself")
	errCertificates = errors.New("read kubeconfig: it has certificates that can't be read")
	errServer       = errors.New("read kubeconfig: it has a server that is no URL")
	errNoContext    = errors.New("read kubeconfig: its current-context must name a context, a cluster and a user that are in it")
)

// Rest leads to the API server of a kubeconfig's current context. A kubeconfig that would have
// the operator run programs or read files of its own is refused. Its connections are its own, with
// answers' headers bounded; see Bound for the rest. Errors say what to change and quote no value.
func Rest(data []byte) (*rest.Config, error) {
	parsed, err := load(data)
	if err != nil {
		return nil, err
	}

	if err := selfContained(parsed); err != nil {
		return nil, err
	}

	config, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errNoContext
	}

	return config, connected(config)
}

// Direct is Rest for a kubeconfig of somebody who administers no cluster here: one that would
// have the operator call a proxy is refused, too, which could be anything that listens.
func Direct(data []byte) (*rest.Config, error) {
	config, err := Rest(data)
	if err != nil {
		return nil, err
	}

	if config.Proxy != nil {
		return nil, errProxy
	}

	return config, nil
}

// Server is the URL of the API server that a kubeconfig's current context leads to.
func Server(data []byte) (string, error) {
	parsed, err := load(data)
	if err != nil {
		return "", err
	}

	current := parsed.Contexts[parsed.CurrentContext]
	if current == nil || parsed.Clusters[current.Cluster] == nil {
		return "", errNoContext
	}

	return parsed.Clusters[current.Cluster].Server, nil
}

// WithCertificate is a kubeconfig for the cluster of another one's current context, with a client
// certificate and its key in PEM, and nothing else of the other's.
func WithCertificate(data, certificate, key []byte) ([]byte, error) {
	parsed, err := load(data)
	if err != nil {
		return nil, err
	}

	if err := selfContained(parsed); err != nil {
		return nil, err
	}

	current := parsed.Contexts[parsed.CurrentContext]
	if current == nil || parsed.Clusters[current.Cluster] == nil {
		return nil, errNoContext
	}

	const name = "hyperfleet"

	from, out := parsed.Clusters[current.Cluster], clientcmdapi.NewConfig()
	out.CurrentContext = name
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	out.Clusters[name] = &clientcmdapi.Cluster{
		Server: from.Server, CertificateAuthorityData: from.CertificateAuthorityData,
		TLSServerName: from.TLSServerName, InsecureSkipTLSVerify: from.InsecureSkipTLSVerify,
	}

	text, err := clientcmd.Write(*out)
	if err != nil {
		return nil, errors.New("write kubeconfig: it can't be written as YAML")
	}

	return text, nil
}

func load(data []byte) (*clientcmdapi.Config, error) {
	err := inputbound.YAML(data, maxValues)
	if err == nil {
		err = inputbound.Anchors(data)
	}

	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}

	parsed, err := clientcmd.Load(data)
	if err != nil {
		return nil, errNoKubeconfig
	}

	return parsed, nil
}

// selfContained refuses a kubeconfig that reaches out of itself.
func selfContained(config *clientcmdapi.Config) error {
	for name, user := range config.AuthInfos {
		switch {
		case user == nil:
		case user.Exec != nil, user.AuthProvider != nil:
			return fmt.Errorf(
				"read kubeconfig: user %q runs a program to authenticate: use a token or a client certificate in it", name)
		case user.ClientCertificate != "", user.ClientKey != "", user.TokenFile != "":
			return fmt.Errorf(
				"read kubeconfig: user %q names files: put what they hold in it (client-certificate-data, client-key-data, token)",
				name)
		}
	}

	for name, user := range config.AuthInfos {
		if user == nil {
			continue
		}

		if err := inputbound.Key(user.ClientKeyData); err != nil {
			return fmt.Errorf("read kubeconfig: user %q: client-key-data: %w", name, err)
		}
	}

	for name, cluster := range config.Clusters {
		if cluster != nil && cluster.CertificateAuthority != "" {
			return fmt.Errorf(
				"read kubeconfig: cluster %q names a file: put what it holds in certificate-authority-data", name)
		}
	}

	return nil
}
