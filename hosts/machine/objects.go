// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	var secret corev1.Secret

	err := k.Reader.Get(ctx, key, &secret)

	switch {
	case apierrors.IsNotFound(err):
		return log.Secret{}, errclass.New(errclass.Configuration, "SecretNotFound",
			"read secret %s: it does not exist: create it with the key %q", key, ref.Key)
	case apierrors.IsForbidden(err):
		return log.Secret{}, errclass.New(errclass.Configuration, "SecretForbidden",
			"read secret %s: the operator may not: give its service account `get` on secrets in namespace %s", key, namespace)
	case err != nil:
		return log.Secret{}, errclass.New(errclass.Transient, "SecretUnavailable", "read secret %s: %w", key, err)
	}

	if err := credential.Check(&secret, to, nil); err != nil {
		return log.Secret{}, err
	}

	value := secret.Data[ref.Key]
	if len(value) == 0 {
		return log.Secret{}, errclass.New(errclass.Configuration, "SecretKeyMissing",
			"read secret %s: it has no key %q, or nothing in it: put the value there", key, ref.Key)
	}

	return log.NewSecret(string(value)), nil
}
