// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"context"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenValidity is the validity of a service account's token.
const tokenValidity = 24 * time.Hour

// ServiceAccountConfig returns the configuration of a client that authenticates as a service
// account, with a token as pods have it. The token is valid for a day. ServiceAccountConfig creates
// the namespace and the service account if they do not exist. RBAC determines the permissions.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	admin, err := c.AdminConfig()
	if err != nil {
		return nil, err
	}

	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}

	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", namespace, err)
	}

	accounts := client.CoreV1().ServiceAccounts(namespace)

	_, err = accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create service account %s/%s: %w", namespace, name, err)
	}

	seconds := int64(tokenValidity.Seconds())

	token, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create token of service account %s/%s: %w", namespace, name, err)
	}

	config := c.config()
	config.BearerToken = token.Status.Token

	return config, nil
}

// Kubeconfig returns a client's configuration as a kubeconfig file.
func Kubeconfig(config *rest.Config) ([]byte, error) {
	const name = "local"

	file := clientcmdapi.NewConfig()
	file.CurrentContext = name
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}

	data, err := clientcmd.Write(*file)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}

	return data, nil
}

// WriteKubeconfig writes a client's configuration to a kubeconfig file that only the owner can read.
func WriteKubeconfig(path string, config *rest.Config) error {
	data, err := Kubeconfig(config)
	if err != nil {
		return err
	}

	if err := os.WriteFile(path, data, privateMode); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}

	return nil
}
