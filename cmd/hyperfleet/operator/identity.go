// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	reportKeySecret = "hyperfleet-report-key" //nolint:gosec // the name of a Secret
	reportKeyField  = "key"
	reportKeyBytes  = 32
)

var (
	errNotSynced = errors.New("the caches are not filled yet")
	errShortKey  = errors.New("its key has fewer than 32 bytes: take the key out of the secret, a new one is made at the next start")
)

//+kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=events,verbs=create
//+kubebuilder:rbac:groups=coordination.k8s.io,namespace=hyperfleet-system,resources=leases,verbs=get;create;update

// identity is what must be the same after a restart.
type identity struct {
	// uid marks the operator's machines and runners.
	uid string
	// reportKey signs the machines' tokens.
	reportKey []byte
	// webhooks signs the certificate that machines are shown, where the operator does so itself.
	webhooks *authority
}

func identify(ctx context.Context, reader client.Reader, writer client.Writer, cfg config.OperatorConfig) (identity, error) {
	uid := cfg.OperatorUID
	if uid == "" {
		var cluster corev1.Namespace
		if err := reader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &cluster); err != nil {
			return identity{}, fmt.Errorf("read namespace %s, whose uid is part of the operator's identity: set operatorUID, "+
				"or let the operator get the namespace: %w", metav1.NamespaceSystem, err)
		}

		uid = uidOf(cluster.UID, cfg.Namespace)
	}

	if slices.Contains(cfg.Controllers, config.AreaRunners) {
		if err := sameAsClaims(ctx, reader, uid); err != nil {
			return identity{}, err
		}
	}

	// Machines call the area runners alone; no other may read its key.
	if !slices.Contains(cfg.Controllers, config.AreaRunners) {
		return identity{uid: uid}, nil
	}

	key, err := reportKey(ctx, reader, writer, cfg.Namespace)
	if err != nil {
		return identity{}, fmt.Errorf("read secret %s/%s: %w", cfg.Namespace, reportKeySecret, err)
	}

	out := identity{uid: uid, reportKey: key}

	if byOwnAuthority(cfg) {
		if out.webhooks, err = readAuthority(ctx, reader, writer, clock.RealClock{}, cfg); err != nil {
			return identity{}, fmt.Errorf("read secret %s/%s: %w", cfg.Namespace, authoritySecret, err)
		}
	}

	return out, nil
}

// uidOf is the identity of an operator in a namespace of a cluster. The cluster is known by
// the uid of kube-system, which is as old as the cluster: so an operator that is deleted with
// its namespace and installed again is the same one. It is pure.
func uidOf(cluster types.UID, namespace string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(string(cluster)+"/"+namespace)).String()
}

// sameAsClaims sees that the machines that claims have bear this identity: another operator's
// would be left behind, and their claims called done.
func sameAsClaims(ctx context.Context, reader client.Reader, uid string) error {
	var claims v1alpha1.MachineClaimList

	err := reader.List(ctx, &claims)
	if meta.IsNoMatchError(err) {
		return nil // there are no claims before there are CRDs
	}

	if err != nil {
		return fmt.Errorf("list machine claims: %w", err)
	}

	for i := range claims.Items {
		vm := claims.Items[i].Status.VMRef
		if vm == nil || vm.OperatorUID == "" || vm.OperatorUID == uid {
			continue
		}

		return fmt.Errorf("start as operator %s: MachineClaim %s has VM %s of operator %s: set operatorUID: %s in the "+
			"configuration to go on as that one, or delete its claims while it runs", uid,
			client.ObjectKeyFromObject(&claims.Items[i]), vm.VMID, vm.OperatorUID, vm.OperatorUID)
	}

	return nil
}

// reportKey reads the key, or makes it at the first start of the first replica.
func reportKey(ctx context.Context, reader client.Reader, writer client.Writer, namespace string) ([]byte, error) {
	data, err := kept(ctx, reader, writer, client.ObjectKey{Namespace: namespace, Name: reportKeySecret}, reportKeyField,
		func() (map[string][]byte, error) {
			key := make([]byte, reportKeyBytes)
			_, _ = rand.Read(key) // never fails (crypto/rand)

			return map[string][]byte{reportKeyField: key}, nil
		})
	if err != nil {
		return nil, err
	}

	if len(data[reportKeyField]) < reportKeyBytes {
		return nil, errShortKey
	}

	return data[reportKeyField], nil
}

// kept reads a Secret that the operator fills in itself, where the field is empty. The
// manifests have the Secret, without data, so that the operator may change it alone; where it
// may make Secrets it makes this one too.
func kept(
	ctx context.Context, reader client.Reader, writer client.Writer, name client.ObjectKey, field string,
	fill func() (map[string][]byte, error),
) (map[string][]byte, error) {
	secret := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}

	err := reader.Get(ctx, name, &secret)
	if client.IgnoreNotFound(err) == nil && len(secret.Data[field]) == 0 {
		missing := err != nil

		if secret.Data, err = fill(); err != nil {
			return nil, err
		}

		if missing {
			err = writer.Create(ctx, &secret)
		} else {
			err = writer.Update(ctx, &secret)
		}

		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			err = reader.Get(ctx, name, &secret) // another replica was first
		}

		if missing && apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("it does not exist, and the operator may not make it: apply deploy/base, "+
				"or kubectl -n %s create secret generic %s: %w", name.Namespace, name.Name, err)
		}
	}

	return secret.Data, err
}
