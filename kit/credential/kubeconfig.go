// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// maxValues is the maximum number of values of a kubeconfig. A kubeconfig of one cluster has about
// twenty.
const maxValues = 2000

var (
	// These errors do not wrap their cause, because the cause may quote the input.
	errNotKubeconfig = errors.New("read kubeconfig: it is not a kubeconfig in YAML or JSON")
	errProxy         = errors.New("read kubeconfig: it names a proxy: remove proxy-url, " +
		"because the operator connects to the API server directly")
	errCertificates = errors.New("read kubeconfig: it has invalid certificates")
	errServer       = errors.New("read kubeconfig: its server is not a URL")
	errNoContext    = errors.New("read kubeconfig: its current-context must refer to an existing context, cluster and user")
)

// LoadKubeconfig returns the client configuration in a kubeconfig file of the administrator, which may
// refer to programs and files. If the path is empty, it returns that of the pod that the program runs in.
func LoadKubeconfig(path string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}

	RetryUnreadyAdmission(config)

	return config, nil
}

// RESTConfig returns a client configuration for the API server of the kubeconfig's current context.
// It rejects a kubeconfig that would make the operator run programs or read its own files. The
// configuration has its own connections with limited response headers. LimitResponses also limits
// the bodies. Errors say what to change and contain no values of credentials.
func RESTConfig(data []byte) (*rest.Config, error) {
	parsed, err := load(data)
	if err != nil {
		return nil, err
	}

	if err := checkSelfContained(parsed); err != nil {
		return nil, err
	}

	config, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errNoContext
	}

	RetryUnreadyAdmission(config)

	return config, setTransport(config)
}

// RESTConfigWithoutProxy does the same as RESTConfig, and also rejects a kubeconfig with a proxy.
// Use it for kubeconfigs of users who are not administrators, because the proxy could be any server
// in the operator's network.
func RESTConfigWithoutProxy(data []byte) (*rest.Config, error) {
	config, err := RESTConfig(data)
	if err != nil {
		return nil, err
	}

	if config.Proxy != nil {
		return nil, errProxy
	}

	return config, nil
}

// currentCluster returns the cluster of the kubeconfig's current context.
func currentCluster(config *clientcmdapi.Config) (*clientcmdapi.Cluster, error) {
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, errNoContext
	}

	return config.Clusters[current.Cluster], nil
}

// NewKubeconfig returns a new kubeconfig for the cluster of the current context in data. The new
// kubeconfig authenticates with the given client certificate and key in PEM. It contains the server
// and its CA, and nothing else of data.
func NewKubeconfig(data, certificate, key []byte) ([]byte, error) {
	cluster, err := loadCluster(data)
	if err != nil {
		return nil, err
	}

	const name = "hyperfleet"

	out := clientcmdapi.NewConfig()
	out.CurrentContext = name
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	out.Clusters[name] = &clientcmdapi.Cluster{
		Server: cluster.Server, CertificateAuthorityData: cluster.CertificateAuthorityData,
		TLSServerName: cluster.TLSServerName, InsecureSkipTLSVerify: cluster.InsecureSkipTLSVerify,
	}

	text, err := clientcmd.Write(*out)
	if err != nil {
		return nil, errors.New("write kubeconfig: encoding as YAML failed")
	}

	return text, nil
}

// DigestOfCluster returns a digest of what NewKubeconfig takes from data: the server, its CA, and how it is verified. Only
// the values count, because another release may write the same kubeconfig as another text.
func DigestOfCluster(data []byte) (string, error) {
	cluster, err := loadCluster(data)
	if err != nil {
		return "", err
	}

	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %t",
		cluster.Server, cluster.CertificateAuthorityData, cluster.TLSServerName, cluster.InsecureSkipTLSVerify))

	return hex.EncodeToString(sum[:]), nil
}

// loadCluster returns the cluster of the current context of a kubeconfig that refers to no programs and files.
func loadCluster(data []byte) (*clientcmdapi.Cluster, error) {
	parsed, err := load(data)
	if err != nil {
		return nil, err
	}

	if err := checkSelfContained(parsed); err != nil {
		return nil, err
	}

	return currentCluster(parsed)
}

// load parses a kubeconfig. It rejects a text that could become a huge value.
func load(data []byte) (*clientcmdapi.Config, error) {
	err := bounds.CheckYAML(data, maxValues)
	if err == nil {
		err = bounds.RejectAnchors(data)
	}

	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}

	parsed, err := clientcmd.Load(data)
	if err != nil {
		return nil, errNotKubeconfig
	}

	return parsed, nil
}

// checkSelfContained returns an error if the kubeconfig refers to programs or files, or has a
// private key that is too large.
func checkSelfContained(config *clientcmdapi.Config) error {
	for name, user := range config.AuthInfos {
		switch {
		case user == nil:
		case user.Exec != nil, user.AuthProvider != nil:
			return fmt.Errorf(
				"read kubeconfig: user %q runs a program to authenticate: use a token or an embedded client certificate", name)
		case user.ClientCertificate != "", user.ClientKey != "", user.TokenFile != "":
			return fmt.Errorf(
				"read kubeconfig: user %q refers to files: embed their content (client-certificate-data, client-key-data, token)",
				name)
		}
	}

	for name, user := range config.AuthInfos {
		if user == nil {
			continue
		}

		if err := bounds.CheckPrivateKey(user.ClientKeyData); err != nil {
			return fmt.Errorf("read kubeconfig: user %q: client-key-data: %w", name, err)
		}
	}

	for name, cluster := range config.Clusters {
		if cluster != nil && cluster.CertificateAuthority != "" {
			return fmt.Errorf(
				"read kubeconfig: cluster %q refers to a file: embed its content as certificate-authority-data", name)
		}
	}

	return nil
}
