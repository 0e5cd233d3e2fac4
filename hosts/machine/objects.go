// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// List returns the hosts of a fleet. The reader must have the index [FleetIndex]. Hosts that are
// read with a manager's client belong to its cache and must not be changed.
func List(ctx context.Context, reader client.Reader, kind Catalog, namespace, fleet string) ([]Object, error) {
	list := kind.NewList()

	err := reader.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{FleetIndex: fleet},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list %s of fleet %s: %w", kind.Name(), fleet, err)
	}

	return Items(list)
}

// Items returns the hosts in a list of any kind of host.
func Items(list client.ObjectList) ([]Object, error) {
	var out []Object

	err := meta.EachListItem(list, func(item runtime.Object) error {
		host, ok := item.(Object)
		if !ok {
			return fmt.Errorf("read list of hosts: %T is not a host", item)
		}

		out = append(out, host)

		return nil
	})

	return out, err
}

// Kubeconfig returns the credential with which a host joins its cluster: the one that its spec
// names, or else the one that the operator issued.
func Kubeconfig(
	ctx context.Context, secrets Secrets, namespace string, specRef v1alpha1.LocalSecretKeySelector,
	access Access, destination credential.Destination,
) (log.Secret, error) {
	switch {
	case specRef.Name != "":
		return secrets.Secret(ctx, namespace, specRef, destination)
	case access.Kubeconfig.IsEmpty():
		return log.Secret{}, errclass.New(errclass.Configuration, "NoKubeconfig",
			"the host has no credential to join its cluster: set its kubeconfigSecretRef, or nodeCredentials of its HostFleet")
	default:
		return access.Kubeconfig, nil
	}
}

// KubeSecrets reads Secrets from the API server.
type KubeSecrets struct {
	// Reader must read from the API server, not from a cache.
	Reader client.Reader
}

// Secret reads one key of a Secret.
func (k KubeSecrets) Secret(
	ctx context.Context, namespace string, ref v1alpha1.LocalSecretKeySelector, destination credential.Destination,
) (log.Secret, error) {
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}

	secret, err := credential.ReadSecret(ctx, k.Reader, key, ref.Key,
		func(secret *corev1.Secret) error { return credential.CheckDestination(secret, destination, nil) })
	if err != nil {
		return log.Secret{}, err
	}

	return log.NewSecret(string(secret.Data[ref.Key])), nil
}
