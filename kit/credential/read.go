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

// Reasons of Read's errors.
const (
	ReasonSecretNotFound    = "SecretNotFound"    // #nosec G101 -- a word
	ReasonSecretForbidden   = "SecretForbidden"   // #nosec G101 -- a word
	ReasonSecretUnavailable = "SecretUnavailable" // #nosec G101 -- a word
	ReasonSecretKeyNotFound = "SecretKeyNotFound" // #nosec G101 -- a word
)

// Read reads a Secret for the value under a key, which is there then and not empty. The reader
// asks the API server itself: no Secret is kept in a cache. The checks are asked before the key
// is looked for, so that nobody who may not read the Secret learns what is in it; a check's
// error is returned as it is.
//
// Errors are of class Configuration and name the Secret and the fix, except where the API
// server did not answer. They never hold a value.
func Read(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, checks ...func(*corev1.Secret) error,
) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, name, secret); err != nil {
		return nil, unread(err, name, key)
	}

	for _, check := range checks {
		if err := check(secret); err != nil {
			return nil, err
		}
	}

	if len(secret.Data[key]) == 0 {
		return nil, errclass.New(errclass.Configuration, ReasonSecretKeyNotFound,
			"read secret %s: it has no key %q, or nothing in it: put the value there", name, key)
	}

	return secret, nil
}

// Look reads what is around a Secret, for a check of whether its values may be read at all: of them
// nothing is asked for. Errors are as those of Read.
func Look(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, check func(metav1.Object) error,
) error {
	around := &metav1.PartialObjectMetadata{}
	around.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))

	if err := reader.Get(ctx, name, around); err != nil {
		return unread(err, name, key)
	}

	return check(around)
}

// unread says why a Secret was not read.
func unread(err error, name types.NamespacedName, key string) error {
	switch {
	case apierrors.IsNotFound(err):
		return errclass.New(errclass.Configuration, ReasonSecretNotFound,
			"read secret %s: it does not exist: create it with the key %q", name, key)
	case apierrors.IsForbidden(err):
		return errclass.New(errclass.Configuration, ReasonSecretForbidden,
			"read secret %s: the operator may not: give its service account `get` on secrets in namespace %s", name, name.Namespace)
	default:
		return errclass.New(errclass.Transient, ReasonSecretUnavailable, "read secret %s: %w", name, err)
	}
}

// Missing tells whether an error of Read means that the Secret, or what was looked for in it, is
// not there.
func Missing(err error) bool {
	reason := errclass.Reason(err, "")

	return reason == ReasonSecretNotFound || reason == ReasonSecretKeyNotFound
}

// ReadKubeconfig is Read for a kubeconfig, which says itself which server it is sent to.
func ReadKubeconfig(
	ctx context.Context, reader client.Reader, name types.NamespacedName, key string, checks ...func(*corev1.Secret) error,
) ([]byte, error) {
	secret, err := Read(ctx, reader, name, key, append(checks, func(secret *corev1.Secret) error {
		return Check(secret, ToKubeconfig(secret.Data[key]), nil)
	})...)
	if err != nil {
		return nil, err
	}

	return secret.Data[key], nil
}
