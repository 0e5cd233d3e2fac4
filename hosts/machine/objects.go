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
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// List gives the hosts of a fleet. From a manager's client they are those of its cache, and
// must not be changed; the index of [FleetIndex] has to be there.
func List(ctx context.Context, reader client.Reader, kind Catalog, namespace, fleet string) ([]Object, error) {
	list := kind.NewList()

	err := reader.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{FleetIndex: fleet},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list %s of fleet %s: %w", kind.Name(), fleet, err)
	}

	return Items(list)
}

// Items gives the hosts in a list of any kind of host.
func Items(list client.ObjectList) ([]Object, error) {
	var out []Object

	err := meta.EachListItem(list, func(item runtime.Object) error {
		host, ok := item.(Object)
		if !ok {
			return fmt.Errorf("read list: %T is no host", item)
		}

		out = append(out, host)

		return nil
	})

	return out, err
}

// states are those of parts that a host has lost, as package push takes them.
func states(lost []string) map[string]plan.State {
	out := map[string]plan.State{}
	for _, label := range lost {
		out[label] = plan.Lost
	}

	return out
}

// Kubeconfig is what a host joins its cluster with: what its spec names, or else what was made
// for it.
func Kubeconfig(
	ctx context.Context, secrets Secrets, namespace string, named v1alpha1.LocalSecretKeySelector, access Access, to credential.Sent,
) (log.Secret, error) {
	switch {
	case named.Name != "":
		return secrets.Secret(ctx, namespace, named, to)
	case access.Kubeconfig.Empty():
		return log.Secret{}, errclass.New(errclass.Configuration, "NoKubeconfig",
			"there is nothing that the host could join its cluster with: set its kubeconfigSecretRef, or nodeCredentials of its HostFleet")
	default:
		return access.Kubeconfig, nil
	}
}

// KubeSecrets reads Secrets from the API server.
type KubeSecrets struct {
	// Reader reads from the API server itself, not from a cache.
	Reader client.Reader
}

// Secret reads one key.
func (k KubeSecrets) Secret(
	ctx context.Context, namespace string, ref v1alpha1.LocalSecretKeySelector, to credential.Sent,
) (log.Secret, error) {
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}

	secret, err := credential.Read(ctx, k.Reader, key, ref.Key,
		func(secret *corev1.Secret) error { return credential.Check(secret, to, nil) })
	if err != nil {
		return log.Secret{}, err
	}

	return log.NewSecret(string(secret.Data[ref.Key])), nil
}
