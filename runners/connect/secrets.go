// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Secrets reads the values that SecretKeySelectors point to.
type Secrets struct {
	// Reader reads Secrets from the API server itself, not from a cache.
	Reader client.Reader
	// OperatorNamespace is the default namespace of cluster-wide objects' Secrets.
	OperatorNamespace string
}

// Value reads the value that sel picks for an object in the namespace from; an object
// without a namespace reads as the operator. A missing optional value is empty.
//
// Errors are of class Configuration and name the Secret and the fix, except where the
// API server did not answer. They never hold a value.
func (s *Secrets) Value(ctx context.Context, sel v1alpha1.SecretKeySelector, from string) (string, error) {
	reader := from
	if reader == "" {
		reader = s.OperatorNamespace
	}

	key := types.NamespacedName{Namespace: sel.Namespace, Name: sel.Name}
	if key.Namespace == "" {
		key.Namespace = reader
	}

	optional := sel.Optional != nil && *sel.Optional

	var secret corev1.Secret

	err := s.Reader.Get(ctx, key, &secret)

	switch {
	case apierrors.IsNotFound(err) && optional:
		return "", nil
	case apierrors.IsNotFound(err):
		return "", errclass.New(errclass.Configuration, "SecretNotFound",
			"read secret %s: it does not exist: create it with the key %q", key, sel.Key)
	case apierrors.IsForbidden(err):
		return "", errclass.New(errclass.Configuration, "SecretForbidden",
			"read secret %s: the operator may not: give its service account `get` on secrets in namespace %s",
			key, key.Namespace)
	case err != nil:
		return "", errclass.Wrap(errclass.Transient, "SecretUnavailable", err)
	}

	if key.Namespace != reader && !allows(&secret, reader) {
		return "", errclass.New(errclass.Configuration, "SecretNotAllowed",
			"read secret %s for namespace %s: the secret does not allow it: annotate it %s=%s",
			key, reader, v1alpha1.AnnotationAllowedNamespaces, reader)
	}

	value, ok := secret.Data[sel.Key]
	if !ok && !optional {
		return "", errclass.New(errclass.Configuration, "SecretKeyNotFound",
			"read secret %s: it has no key %q", key, sel.Key)
	}

	return string(value), nil
}

// source reads an optional SecretValueSource; nil is empty.
func (s *Secrets) source(ctx context.Context, src *v1alpha1.SecretValueSource, from string) (string, error) {
	if src == nil {
		return "", nil
	}

	return s.Value(ctx, src.SecretKeyRef, from)
}

func allows(secret *corev1.Secret, namespace string) bool {
	allowed := strings.Split(secret.Annotations[v1alpha1.AnnotationAllowedNamespaces], ",")

	return slices.ContainsFunc(allowed, func(a string) bool {
		a = strings.TrimSpace(a)

		return a == "*" || (a != "" && a == namespace)
	})
}
