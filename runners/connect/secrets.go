// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

// reasonSecretNotAllowed is of a Secret that does not let another namespace use it.
const reasonSecretNotAllowed = "SecretNotAllowed"

// Secrets reads the values that SecretKeySelectors point to.
type Secrets struct {
	// Reader reads Secrets from the API server itself, not from a cache.
	Reader client.Reader
	// OperatorNamespace is the default namespace of cluster-wide objects' Secrets.
	OperatorNamespace string
	// Reach has the servers that an administrator listed.
	Reach *httpbound.Reach
}

// Value reads the value that sel picks for an object in the namespace from, which is sent to
// nobody; an object without a namespace reads as the operator. An optional value that is missing,
// or not allowed, is empty.
//
// Errors are of class Configuration and name the Secret and the fix, except where the
// API server did not answer. They never hold a value.
func (s *Secrets) Value(ctx context.Context, sel v1alpha1.SecretKeySelector, from string) (string, error) {
	return s.ValueFor(ctx, sel, from, credential.Sent{})
}

// ValueFor is Value for a value that is sent to servers, if the Secret allows it.
func (s *Secrets) ValueFor(ctx context.Context, sel v1alpha1.SecretKeySelector, from string, to credential.Sent) (string, error) {
	return s.read(ctx, sel, from, func([]byte) credential.Sent { return to })
}

// Kubeconfig is Value for a kubeconfig, which says itself where it is sent to.
func (s *Secrets) Kubeconfig(ctx context.Context, sel v1alpha1.SecretKeySelector, from string) (string, error) {
	return s.read(ctx, sel, from, credential.ToKubeconfig)
}

func (s *Secrets) read(
	ctx context.Context, sel v1alpha1.SecretKeySelector, from string, to func(value []byte) credential.Sent,
) (string, error) {
	reader := from
	if reader == "" {
		reader = s.OperatorNamespace
	}

	key := types.NamespacedName{Namespace: sel.Namespace, Name: sel.Name}
	if key.Namespace == "" {
		key.Namespace = reader
	}

	value := func(secret *corev1.Secret) []byte { return secret.Data[sel.Key] }
	notAllowed := errclass.New(errclass.Configuration, reasonSecretNotAllowed,
		"read secret %s for namespace %s: there is none that allows it: annotate it %s=%s",
		key, reader, v1alpha1.AnnotationAllowedNamespaces, reader)
	mayRead := func(secret metav1.Object) error {
		if key.Namespace != reader && !allows(secret, reader) {
			return notAllowed
		}

		return nil
	}

	var (
		secret *corev1.Secret
		err    error
	)

	// What another namespace has and does not share is not even read.
	if key.Namespace != reader {
		err = credential.Look(ctx, s.Reader, key, sel.Key, mayRead)

		// Nor is a tenant told whether it is there.
		if from != "" && credential.Missing(err) {
			err = notAllowed
		}
	}

	if err == nil {
		secret, err = credential.Read(ctx, s.Reader, key, sel.Key,
			func(secret *corev1.Secret) error { return mayRead(secret) },
			func(secret *corev1.Secret) error { return credential.Check(secret, to(value(secret)), s.Reach) })
	}

	missing := credential.Missing(err) || errclass.Reason(err, "") == reasonSecretNotAllowed
	if sel.Optional != nil && *sel.Optional && missing {
		return "", nil
	}

	if err != nil {
		return "", err
	}

	return string(value(secret)), nil
}

// source reads an optional SecretValueSource; nil is empty.
func (s *Secrets) source(ctx context.Context, src *v1alpha1.SecretValueSource, from string, to credential.Sent) (string, error) {
	if src == nil {
		return "", nil
	}

	return s.ValueFor(ctx, src.SecretKeyRef, from, to)
}

// refused tells whether an error is the word of a Secret's owner.
func refused(err error) bool {
	reason := errclass.Reason(err, "")

	return reason == reasonSecretNotAllowed || reason == credential.ReasonServerNotAllowed
}

func allows(secret metav1.Object, namespace string) bool {
	allowed := strings.Split(secret.GetAnnotations()[v1alpha1.AnnotationAllowedNamespaces], ",")

	return slices.ContainsFunc(allowed, func(a string) bool {
		a = strings.TrimSpace(a)

		return a == "*" || (a != "" && a == namespace)
	})
}
