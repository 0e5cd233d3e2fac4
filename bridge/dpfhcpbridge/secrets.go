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

// secrets are what the Secrets of a bridge hold.
type secrets struct {
	sshKeys []byte
	logins  credentials.Docker
	// pull is the pull secret without its content.
	pull metav1.ObjectMeta
	// version of the pull secret.
	version string
}

// secretsValid reads the Secrets that a bridge names. They are not kept in memory: only
// their names and versions are watched.
func secretsValid(ctx context.Context, s *scope) step.Result {
	ssh, stop := s.secret(ctx, s.bridge.Spec.SSHKeySecretRef.Name, v1alpha1.SSHKeySecretKey)
	if stop != nil {
		return *stop
	}

	s.secrets.sshKeys = ssh.Data[v1alpha1.SSHKeySecretKey]
	if err := credentials.CheckSSHKeys(s.secrets.sshKeys); err != nil {
		return unreadable(ssh, v1alpha1.SSHKeySecretKey, err)
	}

	pull, stop := s.secret(ctx, s.bridge.Spec.PullSecretRef.Name, v1alpha1.PullSecretKey)
	if stop != nil {
		return *stop
	}

	var err error
	if s.secrets.logins, err = credentials.ReadDocker(pull.Data[v1alpha1.PullSecretKey]); err != nil {
		return unreadable(pull, v1alpha1.PullSecretKey, err)
	}

	s.secrets.pull, s.secrets.version = pull.ObjectMeta, string(pull.UID)+"/"+pull.ResourceVersion

	return step.Done().WithReason(v1alpha1.ReasonValid, "both Secrets are there and can be read")
}

// secret reads one of the Secrets; without it, or without the key, it gives what stops.
func (s *scope) secret(ctx context.Context, name, key string) (*corev1.Secret, *step.Result) {
	secret, err := credential.Read(ctx, s.Live, client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}, key)

	var result step.Result

	switch errclass.Reason(err, "") {
	case credential.ReasonSecretNotFound:
		result = step.Wait(lookAgain, v1alpha1.ReasonNotFound, err.Error())
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

func unreadable(secret *corev1.Secret, key string, err error) step.Result {
	return step.Stall(v1alpha1.ReasonUnreadable, fmt.Sprintf("Secret %s/%s, key %s: %v", secret.Namespace, secret.Name, key, err))
}
