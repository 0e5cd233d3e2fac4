// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// encryptionKeyBytes is the length of an AES-256 key, which the API server's aescbc provider needs.
const encryptionKeyBytes = 32

// reconcileKeys creates the Secrets that HyperShift reads: the SSH keys under the key that HyperShift
// expects, and the key that encrypts Secrets in etcd. The encryption key is created only once. A cluster
// without its key cannot read its Secrets, and a new key would hide the loss.
func reconcileKeys(ctx context.Context, s *scope) step.Result {
	name := hypershift.SSHKeySecretName(s.bridge.Name)
	if err := s.applySecret(ctx, s.newOwnedSecret(name), map[string][]byte{hypershift.SSHKeyKey: s.secrets.sshKeys}); err != nil {
		return step.FromError(err, resyncInterval)
	}

	key := s.newOwnedSecret(hypershift.EncryptionKeySecretName(s.bridge.Name))

	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(key), &corev1.Secret{})
	if err == nil {
		return step.Done()
	}

	if !apierrors.IsNotFound(err) {
		return step.Fail(fmt.Errorf("get Secret %s/%s: %w", key.Namespace, key.Name, err))
	}

	if s.hasCreatedHostedCluster() {
		return step.Stall(v1alpha1.ReasonNotFound, fmt.Sprintf(
			"Secret %s/%s with the key that encrypts the cluster's Secrets does not exist: restore it from a backup",
			key.Namespace, key.Name))
	}

	raw := make([]byte, encryptionKeyBytes)
	_, _ = rand.Read(raw) // rand.Read never returns an error

	key.Data = map[string][]byte{hypershift.EncryptionKeyKey: raw}
	if err := s.Client.Create(ctx, key, client.FieldOwner(fieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(s.newWriteError(err, "create", key, v1alpha1.ReasonCreationFailed))
	}

	return step.Done()
}

// newOwnedSecret returns a Secret of the bridge without data.
func (s *scope) newOwnedSecret(name string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.bridge.Namespace, Name: name, Labels: hypershift.BridgeLabels(s.bridge),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.bridge, v1alpha1.GroupVersion.WithKind("DPFHCPBridge")),
			},
		},
	}
}

// applySecret creates the Secret or updates its data.
func (s *scope) applySecret(ctx context.Context, desired *corev1.Secret, data map[string][]byte) error {
	key := client.ObjectKeyFromObject(desired)
	existing := &corev1.Secret{}

	err := s.APIReader.Get(ctx, key, existing)
	if apierrors.IsNotFound(err) {
		desired.Data = data
		if err := s.Client.Create(ctx, desired, client.FieldOwner(fieldOwner)); err != nil {
			return s.newWriteError(err, "create", desired, v1alpha1.ReasonCreationFailed)
		}

		return nil
	}

	if err != nil {
		return fmt.Errorf("get Secret %s: %w", key, err)
	}

	if !s.isOwn(existing) {
		return errclass.New(errclass.Configuration, v1alpha1.ReasonCreationFailed,
			"Secret %s exists and does not belong to this bridge: delete it", key)
	}

	same := len(existing.Data) == len(data)
	for name, value := range data {
		same = same && bytes.Equal(existing.Data[name], value)
	}

	if same {
		return nil
	}

	existing.Data = data
	if err := s.Client.Update(ctx, existing, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("update Secret %s: %w", key, err)
	}

	return nil
}

// deleteKeys deletes the bridge's own Secrets.
func deleteKeys(ctx context.Context, s *scope) step.Result {
	for _, name := range []string{hypershift.SSHKeySecretName(s.bridge.Name), hypershift.EncryptionKeySecretName(s.bridge.Name)} {
		if err := s.deleteSecret(ctx, client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}); err != nil {
			return step.Fail(err)
		}
	}

	return step.Done()
}

// deleteSecret deletes the Secret if it belongs to the bridge. It does not wait until the Secret is
// gone, because Secrets have no finalizers unless somebody adds one.
func (s *scope) deleteSecret(ctx context.Context, key client.ObjectKey) error {
	secret := &corev1.Secret{}

	err := s.APIReader.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) || err == nil && (!s.isOwn(secret) || !secret.DeletionTimestamp.IsZero()) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("get Secret %s: %w", key, err)
	}

	if err := s.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Secret %s: %w", key, err)
	}

	return nil
}
