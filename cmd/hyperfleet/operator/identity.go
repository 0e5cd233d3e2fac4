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
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	reportKeySecret = "hyperfleet-report-key" //nolint:gosec // the name of a Secret
	reportKeyField  = "key"
	reportKeyBytes  = 32
)

var (
	errNotSynced = errors.New("the caches are not synced yet")
	errShortKey  = errors.New("its key has fewer than 32 bytes: delete the key from the Secret, " +
		"so that the operator creates a new key at its next start")
)

//+kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=events,verbs=create
//+kubebuilder:rbac:groups=coordination.k8s.io,namespace=hyperfleet-system,resources=leases,verbs=get;create;update

// identity has the values that must stay the same after a restart.
type identity struct {
	// uid is the operator UID in the ownership records of machines and runners.
	uid string
	// reportKey signs the tokens with which machines report.
	reportKey []byte
	// webhookAuthority is the CA of the webhook server; nil if the operator does not use its own CA.
	webhookAuthority *authority
}

// loadIdentity returns the identity of the operator. If the runners area is enabled, it creates the report key,
// with which machines' tokens are signed, and the CA of the webhooks, if they do not exist. It then also
// returns an error if machines of another operator UID exist.
func loadIdentity(ctx context.Context, reader client.Reader, writer client.Writer, cfg config.OperatorConfig) (identity, error) {
	uid := cfg.OperatorUID
	if uid == "" {
		var kubeSystem corev1.Namespace
		if err := reader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &kubeSystem); err != nil {
			return identity{}, fmt.Errorf("get namespace %s, whose UID is part of the operator's identity: set operatorUID, "+
				"or give the operator the permission to get the namespace: %w", metav1.NamespaceSystem, err)
		}

		uid = deriveOperatorUID(kubeSystem.UID, cfg.Namespace)
	}

	// Only the runners area has claims, and machines call only this area, so only this area may read the key.
	if !slices.Contains(cfg.Controllers, config.AreaRunners) {
		return identity{uid: uid}, nil
	}

	if err := checkClaimOwners(ctx, reader, uid); err != nil {
		return identity{}, err
	}

	key, err := ensureReportKey(ctx, reader, writer, cfg.Namespace)
	if err != nil {
		return identity{}, fmt.Errorf("read Secret %s/%s: %w", cfg.Namespace, reportKeySecret, err)
	}

	out := identity{uid: uid, reportKey: key}

	if usesOwnAuthority(cfg) {
		if out.webhookAuthority, err = ensureAuthority(ctx, reader, writer, clock.RealClock{}, cfg); err != nil {
			return identity{}, fmt.Errorf("read Secret %s/%s: %w", cfg.Namespace, authoritySecret, err)
		}
	}

	return out, nil
}

// deriveOperatorUID derives an operator's UID from the cluster and the namespace. If the operator is deleted
// together with its namespace and installed again, it has the same UID. clusterUID is the UID of the namespace
// kube-system, which exists for the whole lifetime of the cluster.
func deriveOperatorUID(clusterUID types.UID, namespace string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(string(clusterUID)+"/"+namespace)).String()
}

// checkClaimOwners returns an error if the machine of a claim has another operator UID. This operator would
// not delete such a machine, and would consider its claim finished.
func checkClaimOwners(ctx context.Context, reader client.Reader, uid string) error {
	var foreign *v1alpha1.MachineClaim

	err := watch.ForEach(ctx, reader, &v1alpha1.MachineClaimList{}, func(claim *v1alpha1.MachineClaim) {
		if vm := claim.Status.VMRef; foreign == nil && vm != nil && vm.OperatorUID != "" && vm.OperatorUID != uid {
			foreign = claim
		}
	})
	if meta.IsNoMatchError(err) {
		return nil // the CRD is not installed, so there are no claims
	}

	if err != nil {
		return fmt.Errorf("list MachineClaims: %w", err)
	}

	if foreign == nil {
		return nil
	}

	vm := foreign.Status.VMRef

	return fmt.Errorf("start as operator %s: MachineClaim %s has VM %s of operator %s: set operatorUID: %s in the "+
		"configuration to continue as that operator, or delete its claims while that operator runs", uid,
		client.ObjectKeyFromObject(foreign), vm.VMID, vm.OperatorUID, vm.OperatorUID)
}

// ensureReportKey reads the key from its Secret. The first replica that starts creates the key.
func ensureReportKey(ctx context.Context, reader client.Reader, writer client.Writer, namespace string) ([]byte, error) {
	data, err := ensureSecret(ctx, reader, writer, client.ObjectKey{Namespace: namespace, Name: reportKeySecret}, reportKeyField,
		func() (map[string][]byte, error) {
			key := make([]byte, reportKeyBytes)
			_, _ = rand.Read(key) // crypto/rand never returns an error

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

// ensureSecret returns the data of a Secret. If the given field is empty, it writes the data that fill
// returns. The manifests contain the Secret without data, so that the operator needs only the permission to
// update this Secret. If the Secret does not exist, ensureSecret creates it, which needs the permission to
// create Secrets.
func ensureSecret(
	ctx context.Context, reader client.Reader, writer client.Writer, name client.ObjectKey, field string,
	fill func() (map[string][]byte, error),
) (map[string][]byte, error) {
	secret := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}

	err := reader.Get(ctx, name, &secret)
	if client.IgnoreNotFound(err) == nil && len(secret.Data[field]) == 0 {
		isMissing := err != nil

		if secret.Data, err = fill(); err != nil {
			return nil, err
		}

		if isMissing {
			err = writer.Create(ctx, &secret)
		} else {
			err = writer.Update(ctx, &secret)
		}

		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			err = reader.Get(ctx, name, &secret) // another replica wrote the data first
		}

		if isMissing && apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("it does not exist, and the operator has no permission to create it: apply deploy/base, "+
				"or run `kubectl -n %s create secret generic %s`: %w", name.Namespace, name.Name, err)
		}
	}

	return secret.Data, err
}
