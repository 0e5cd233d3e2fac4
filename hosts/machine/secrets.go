// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

//+kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,resourceNames=hyperfleet-secrets,verbs=get;patch

// keepSecrets adds a finalizer to the Secrets without which the operator could not drain or release the host.
func (s *scope) keepSecrets(ctx context.Context) error {
	fleet := &v1alpha1.HostFleet{}

	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.obj.GetNamespace(), Name: s.Kind.FleetName(s.obj)}, fleet)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get HostFleet: %w", err)
	}

	// With NodeCredentials, the operator may have issued a credential that the status does not contain yet.
	mayHaveCredential := s.status.NodeCredential != nil || fleet.Spec.NodeCredentials != nil && !s.Kind.HasKubeconfig(s.obj)
	names := s.Kind.SecretsForRelease(s.obj, mayHaveCredential)

	if fleet.Spec.Drain != nil {
		names = append(names, fleet.Spec.Drain.KubeconfigSecretRef.Name)
	}

	var secrets []types.NamespacedName
	for _, name := range names {
		secrets = append(secrets, types.NamespacedName{Namespace: s.obj.GetNamespace(), Name: name})
	}

	return s.Keeper.Keep(ctx, s.obj, secrets...)
}

// reportSecrets reports the error of keepSecrets, which ran before the steps.
func reportSecrets(_ context.Context, s *scope) step.Result { return keep.Report(s.obj, s.keepError) }

// releaseSecrets releases the Secrets of a host that was released.
func releaseSecrets(ctx context.Context, s *scope) step.Result {
	return s.Keeper.ReleaseStep(ctx, s.obj)
}
