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

// encryptionKeyBytes is the length of an AES-256 key, what aescbc of the API server takes.
const encryptionKeyBytes = 32

// keysMade makes the Secrets that HyperShift reads: the SSH keys under HyperShift's own
// name for them, and the key that etcd's Secrets are encrypted with. That key is made once:
// a cluster whose key is lost can't read its Secrets, and a new one would hide it.
func keysMade(ctx context.Context, s *scope) step.Result {
	name := hypershift.SSHKeyName(s.bridge.Name)
	if err := s.keep(ctx, s.owned(name), map[string][]byte{hypershift.SSHKeyKey: s.secrets.sshKeys}); err != nil {
		return step.ForError(err, lookAgain)
	}

	key := s.owned(hypershift.EncryptionKeyName(s.bridge.Name))

	err := s.Live.Get(ctx, client.ObjectKeyFromObject(key), &corev1.Secret{})
	if err == nil {
		return step.Done()
	}

	if !apierrors.IsNotFound(err) {
		return step.Fail(fmt.Errorf("get Secret %s/%s: %w", key.Namespace, key.Name, err))
	}

	if s.made() {
		return step.Stall(v1alpha1.ReasonNotFound, fmt.Sprintf(
			"Secret %s/%s, with which the cluster's Secrets are encrypted, is gone: bring it back from a backup", key.Namespace, key.Name))
	}

	raw := make([]byte, encryptionKeyBytes)
	_, _ = rand.Read(raw) // it never fails

	key.Data = map[string][]byte{hypershift.EncryptionKeyKey: raw}
	if err := s.Client.Create(ctx, key, client.FieldOwner(fieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(s.refused(err, "create", key, v1alpha1.ReasonCreationFailed))
	}

	return step.Done()
}

// owned is a Secret of the bridge, without content.
func (s *scope) owned(name string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.bridge.Namespace, Name: name, Labels: hypershift.Labels(s.bridge),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.bridge, v1alpha1.GroupVersion.WithKind("DPFHCPBridge")),
			},
		},
	}
}

// keep makes a Secret, or fixes its content.
func (s *scope) keep(ctx context.Context, want *corev1.Secret, data map[string][]byte) error {
	key := client.ObjectKeyFromObject(want)
	have := &corev1.Secret{}

	err := s.Live.Get(ctx, key, have)
	if apierrors.IsNotFound(err) {
		want.Data = data
		if err := s.Client.Create(ctx, want, client.FieldOwner(fieldOwner)); err != nil {
			return s.refused(err, "create", want, v1alpha1.ReasonCreationFailed)
		}

		return nil
	}

	if err != nil {
		return fmt.Errorf("get Secret %s: %w", key, err)
	}

	if !s.ours(have) {
		return errclass.New(errclass.Configuration, v1alpha1.ReasonCreationFailed,
			"Secret %s is there and does not belong to this bridge: remove it", key)
	}

	same := len(have.Data) == len(data)
	for name, value := range data {
		same = same && bytes.Equal(have.Data[name], value)
	}

	if same {
		return nil
	}

	have.Data = data
	if err := s.Client.Update(ctx, have, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("update Secret %s: %w", key, err)
	}

	return nil
}

// keysGone removes the bridge's own Secrets.
func keysGone(ctx context.Context, s *scope) step.Result {
	for _, name := range []string{hypershift.SSHKeyName(s.bridge.Name), hypershift.EncryptionKeyName(s.bridge.Name)} {
		if err := s.removeSecret(ctx, client.ObjectKey{Namespace: s.bridge.Namespace, Name: name}); err != nil {
			return step.Fail(err)
		}
	}

	return step.Done()
}

// removeSecret deletes a Secret that is the bridge's. Secrets have no finalizers, unless
// somebody puts one there, who then has his reasons.
func (s *scope) removeSecret(ctx context.Context, key client.ObjectKey) error {
	secret := &corev1.Secret{}

	err := s.Live.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) || err == nil && (!s.ours(secret) || !secret.DeletionTimestamp.IsZero()) {
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
