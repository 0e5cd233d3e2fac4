// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Reasons of the errors of ReadSecret and CheckMetadata.
const (
	ReasonSecretNotFound    = "SecretNotFound"    // #nosec G101 -- a word
	ReasonSecretForbidden   = "SecretForbidden"   // #nosec G101 -- a word
	ReasonSecretUnavailable = "SecretUnavailable" // #nosec G101 -- a word
	ReasonSecretKeyNotFound = "SecretKeyNotFound" // #nosec G101 -- a word
)

// ReadSecret reads a Secret that must have a value for the key. The reader must read from the API
// server directly, because no Secret is kept in a cache. The checks run before the key is looked
// up, so that nobody without permission to use the Secret learns which keys it has. An error of a
// check is returned unchanged.
//
// Errors have class Configuration and name the Secret and the fix. If the API server is
// unavailable, the error has class Transient. Errors never contain a value.
func ReadSecret(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, checks ...func(*corev1.Secret) error,
) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, name, secret); err != nil {
		return nil, wrapReadError(err, name, key)
	}

	for _, check := range checks {
		if err := check(secret); err != nil {
			return nil, err
		}
	}

	if len(secret.Data[key]) == 0 {
		return nil, errclass.New(errclass.Configuration, ReasonSecretKeyNotFound,
			"read secret %s: it has no key %q, or the value is empty: add the value", name, key)
	}

	return secret, nil
}

// CheckMetadata reads the metadata of a Secret and calls check, which decides whether the values
// may be read. It does not read the values. It returns the same errors as ReadSecret.
func CheckMetadata(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, check func(metav1.Object) error,
) error {
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))

	if err := reader.Get(ctx, name, metadata); err != nil {
		return wrapReadError(err, name, key)
	}

	return check(metadata)
}

// wrapReadError converts an error of the API server into an error with a class, a reason and the fix.
func wrapReadError(err error, name types.NamespacedName, key string) error {
	switch {
	case apierrors.IsNotFound(err):
		return errclass.New(errclass.Configuration, ReasonSecretNotFound,
			"read secret %s: it does not exist: create it with the key %q", name, key)
	case apierrors.IsForbidden(err):
		return errclass.New(errclass.Configuration, ReasonSecretForbidden,
			"read secret %s: the operator has no permission: grant its service account `get` on secrets in namespace %s",
			name, name.Namespace)
	default:
		return errclass.New(errclass.Transient, ReasonSecretUnavailable, "read secret %s: %w", name, err)
	}
}

// IsMissing returns whether an error of ReadSecret means that the Secret or its key does not exist.
func IsMissing(err error) bool {
	reason := errclass.ReasonOf(err, "")

	return reason == ReasonSecretNotFound || reason == ReasonSecretKeyNotFound
}

// ReadKubeconfig reads a kubeconfig from a Secret. In addition to the checks, it checks that the
// Secret may be sent to the API server of the kubeconfig. It returns the same errors as ReadSecret and
// CheckDestination.
func ReadKubeconfig(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, checks ...func(*corev1.Secret) error,
) ([]byte, error) {
	secret, err := ReadSecret(ctx, reader, name, key, append(checks, func(secret *corev1.Secret) error {
		return CheckDestination(secret, DestinationOfKubeconfig(secret.Data[key]), nil)
	})...)
	if err != nil {
		return nil, err
	}

	return secret.Data[key], nil
}
