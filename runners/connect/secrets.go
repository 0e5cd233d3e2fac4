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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

// Secrets reads the values that SecretKeySelectors point to.
type Secrets struct {
	// Reader reads Secrets from the API server itself, not from a cache.
	Reader client.Reader
	// OperatorNamespace is the default namespace of cluster-wide objects' Secrets.
	OperatorNamespace string
	// Reach has the servers that an administrator listed.
	Reach *httpbound.Reach
}

// Sent is where a value goes.
type Sent struct {
	// Servers that it is sent to, as httpbound.Server names them.
	Servers []string
	// Usual are those of them that a Secret may be sent to which says nothing: a platform's
	// public ones, or what the same object names that an administrator made.
	Usual []string
}

// Value reads the value that sel picks for an object in the namespace from, which is sent to
// nobody; an object without a namespace reads as the operator. A missing optional value is
// empty.
//
// Errors are of class Configuration and name the Secret and the fix, except where the
// API server did not answer. They never hold a value.
func (s *Secrets) Value(ctx context.Context, sel v1alpha1.SecretKeySelector, from string) (string, error) {
	return s.ValueFor(ctx, sel, from, Sent{})
}

// ValueFor is Value for a value that is sent to servers, if the Secret allows it.
func (s *Secrets) ValueFor(ctx context.Context, sel v1alpha1.SecretKeySelector, from string, to Sent) (string, error) {
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

	if err := s.mayBeSent(&secret, to); err != nil {
		return "", err
	}

	value, ok := secret.Data[sel.Key]
	if !ok && !optional {
		return "", errclass.New(errclass.Configuration, "SecretKeyNotFound",
			"read secret %s: it has no key %q", key, sel.Key)
	}

	return string(value), nil
}

// source reads an optional SecretValueSource; nil is empty.
func (s *Secrets) source(ctx context.Context, src *v1alpha1.SecretValueSource, from string, to Sent) (string, error) {
	if src == nil {
		return "", nil
	}

	return s.ValueFor(ctx, src.SecretKeyRef, from, to)
}

func allows(secret *corev1.Secret, namespace string) bool {
	allowed := strings.Split(secret.Annotations[v1alpha1.AnnotationAllowedNamespaces], ",")

	return slices.ContainsFunc(allowed, func(a string) bool {
		a = strings.TrimSpace(a)

		return a == "*" || (a != "" && a == namespace)
	})
}

// mayBeSent goes by the Secret's own list, which is its owner's word, and else by the usual
// servers and those that an administrator listed.
func (s *Secrets) mayBeSent(secret *corev1.Secret, to Sent) error {
	list, own := secret.Annotations[v1alpha1.AnnotationAllowedServers]

	for _, server := range to.Servers {
		allowed := slices.Contains(to.Usual, server) || s.Reach.Lists(server)
		fix := ", or list the server in runners.platformURLs of the operator's configuration"

		if own {
			allowed = slices.ContainsFunc(strings.Split(list, ","), func(a string) bool { return httpbound.CanonicalServer(a) == server })
			fix = ""
		}

		if !allowed {
			return errclass.New(errclass.Configuration, ReasonServerNotAllowed,
				"send secret %s/%s to %s: the secret does not allow it: annotate it %s=%s%s",
				secret.Namespace, secret.Name, server, v1alpha1.AnnotationAllowedServers, server, fix)
		}
	}

	return nil
}

// ReasonServerNotAllowed is the reason of an error of ValueFor.
const ReasonServerNotAllowed = "ServerNotAllowed"
