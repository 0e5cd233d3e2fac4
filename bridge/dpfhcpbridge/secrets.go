// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// secretData holds the content of the bridge's Secrets.
type secretData struct {
	sshKeys []byte
	logins  credentials.DockerConfig
	// pullSecret is the metadata of the pull secret.
	pullSecret metav1.ObjectMeta
	// pullSecretVersion identifies the content of the pull secret: its UID and its resource version.
	pullSecretVersion string
}

// validateSecrets reads and validates the Secrets that the bridge names. The cache does not hold the
// content of Secrets, only their metadata.
func validateSecrets(ctx context.Context, s *scope) step.Result {
	ssh, stop := s.readSecret(ctx, s.bridge.Spec.SSHKeySecretRef.Name, v1alpha1.SSHKeySecretKey)
	if stop != nil {
		return *stop
	}

	s.secrets.sshKeys = ssh.Data[v1alpha1.SSHKeySecretKey]
	if err := credentials.CheckSSHKeys(s.secrets.sshKeys); err != nil {
		return stallUnreadable(ssh, v1alpha1.SSHKeySecretKey, err)
	}

	pull, stop := s.readSecret(ctx, s.bridge.Spec.PullSecretRef.Name, v1alpha1.PullSecretKey)
	if stop != nil {
		return *stop
	}

	var err error
	if s.secrets.logins, err = credentials.ParseDockerConfig(pull.Data[v1alpha1.PullSecretKey]); err != nil {
		return stallUnreadable(pull, v1alpha1.PullSecretKey, err)
	}

	s.secrets.pullSecret, s.secrets.pullSecretVersion = pull.ObjectMeta, string(pull.UID)+"/"+pull.ResourceVersion

	return step.Done().WithReason(v1alpha1.ReasonValid, "both Secrets exist and are valid")
}

// readSecret reads a Secret that must have the key. If the Secret or the key is missing or cannot be
// read, readSecret returns the result with which the step stops.
func (s *scope) readSecret(ctx context.Context, name, key string) (*corev1.Secret, *step.Result) {
	secret, err := credential.ReadSecret(ctx, s.APIReader, client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}, key)

	var result step.Result

	switch errclass.ReasonOf(err, "") {
	case credential.ReasonSecretNotFound:
		result = step.Wait(resyncInterval, v1alpha1.ReasonNotFound, err.Error())
	case credential.ReasonSecretKeyNotFound:
		result = step.Stall(v1alpha1.ReasonKeyMissing, err.Error())
	default:
		if err == nil {
			return secret, nil
		}

		result = step.Fail(err)
	}

	return nil, &result
}

func stallUnreadable(secret *corev1.Secret, key string, err error) step.Result {
	return step.Stall(v1alpha1.ReasonUnreadable, fmt.Sprintf("Secret %s/%s, key %s: %v", secret.Namespace, secret.Name, key, err))
}
