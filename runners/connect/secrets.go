// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// reasonSecretNotAllowed is the reason of an error for a Secret that does not allow another
// namespace to use it.
const reasonSecretNotAllowed = "SecretNotAllowed"

var errNotAllowed = errors.New("the Secret does not allow the namespace")

// Secrets reads the values that SecretKeySelectors point to.
type Secrets struct {
	// Reader reads Secrets from the API server, not from a cache.
	Reader client.Reader
	// OperatorNamespace is the default namespace of cluster-wide objects' Secrets.
	OperatorNamespace string
	// Egress limits the servers that users name.
	Egress *bounds.EgressPolicy
}

// ReadValue returns the value that sel selects for an object in namespace, for a use in which the value
// is not sent to a server. An empty namespace stands for a cluster-wide object, which reads as the
// operator. If the selector is optional and the value is missing or not allowed, ReadValue returns "".
//
// An error is of class Configuration and names the Secret and the fix, unless the API server is
// unavailable. An error never contains a value.
func (s *Secrets) ReadValue(ctx context.Context, sel v1alpha1.SecretKeySelector, namespace string) (string, error) {
	return s.ReadValueFor(ctx, sel, namespace, credential.Destination{})
}

// ReadValueFor is ReadValue for a value that is sent to servers. It returns an error if the Secret does not
// allow the servers.
func (s *Secrets) ReadValueFor(
	ctx context.Context, sel v1alpha1.SecretKeySelector, namespace string, destination credential.Destination,
) (string, error) {
	return s.readChecked(ctx, sel, namespace, func([]byte) credential.Destination { return destination })
}

// ReadKubeconfig is ReadValue for a kubeconfig, which names the server that it is sent to.
func (s *Secrets) ReadKubeconfig(ctx context.Context, sel v1alpha1.SecretKeySelector, namespace string) (string, error) {
	return s.readChecked(ctx, sel, namespace, credential.DestinationOfKubeconfig)
}

// readChecked reads the selected value for an object in a namespace, or for the operator if namespace is
// empty. A Secret of another namespace must allow the reader's namespace. The Secret must also allow the
// destination, which can depend on the value. readChecked returns an empty string if the selector is optional
// and the value is missing or not allowed.
func (s *Secrets) readChecked(
	ctx context.Context, sel v1alpha1.SecretKeySelector, namespace string, destination func(value []byte) credential.Destination,
) (string, error) {
	reader := namespace
	if reader == "" {
		reader = s.OperatorNamespace
	}

	key := types.NamespacedName{Namespace: sel.Namespace, Name: sel.Name}
	if key.Namespace == "" {
		key.Namespace = reader
	}

	value := func(secret *corev1.Secret) []byte { return secret.Data[sel.Key] }
	notAllowed := errclass.New(errclass.Configuration, reasonSecretNotAllowed,
		"read Secret %s for namespace %s: the Secret is missing or does not allow the namespace: annotate it with %s=%s",
		key, reader, v1alpha1.AnnotationAllowedNamespaces, reader)
	checkAllowed := func(secret metav1.Object) error {
		if key.Namespace != reader && !isNamespaceAllowed(secret, reader) {
			return notAllowed
		}

		return nil
	}

	var (
		secret *corev1.Secret
		err    error
	)

	// Check the metadata of a Secret in another namespace for the permission before the Secret is read.
	if key.Namespace != reader {
		err = credential.CheckMetadata(ctx, s.Reader, key, sel.Key, checkAllowed)

		// A tenant must not learn whether the Secret exists.
		if namespace != "" && credential.IsMissing(err) {
			err = notAllowed
		}
	}

	if err == nil {
		secret, err = credential.ReadSecret(ctx, s.Reader, key, sel.Key,
			func(secret *corev1.Secret) error { return checkAllowed(secret) },
			func(secret *corev1.Secret) error {
				return credential.CheckDestination(secret, destination(value(secret)), s.Egress)
			})
	}

	isMissing := credential.IsMissing(err) || errclass.ReasonOf(err, "") == reasonSecretNotAllowed
	if sel.Optional != nil && *sel.Optional && isMissing {
		return "", nil
	}

	if err != nil {
		return "", err
	}

	// Editors end a file with a line break, and kubectl create secret --from-file keeps it. No credential ends with one.
	return strings.TrimRight(string(value(secret)), "\r\n"), nil
}

// readSource reads an optional SecretValueSource; nil gives "".
func (s *Secrets) readSource(
	ctx context.Context, src *v1alpha1.SecretValueSource, namespace string, destination credential.Destination,
) (string, error) {
	if src == nil {
		return "", nil
	}

	return s.ReadValueFor(ctx, src.SecretKeyRef, namespace, destination)
}

// isForbiddenSecret reports whether an error means that the Secret's annotations do not allow its use.
func isForbiddenSecret(err error) bool {
	reason := errclass.ReasonOf(err, "")

	return reason == reasonSecretNotAllowed || reason == credential.ReasonServerNotAllowed
}

func isNamespaceAllowed(secret metav1.Object, namespace string) bool {
	allowed := strings.Split(secret.GetAnnotations()[v1alpha1.AnnotationAllowedNamespaces], ",")

	return slices.ContainsFunc(allowed, func(a string) bool {
		a = strings.TrimSpace(a)

		return a == "*" || (a != "" && a == namespace)
	})
}
