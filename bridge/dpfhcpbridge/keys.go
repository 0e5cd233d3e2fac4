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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// encryptionKeyBytes is the length of an AES-256 key, which the API server's aescbc provider needs.
const encryptionKeyBytes = 32

// annotationCreated is on the Secret with the encryption key of a HostedCluster that was created.
const annotationCreated = "dpf.hcp.bridge.com/hosted-cluster-created"

// reconcileKeys creates the Secrets that HyperShift reads: the SSH keys under the key that HyperShift
// expects, and the key that encrypts Secrets in etcd. The encryption key is created only once. A cluster
// without its key cannot read its Secrets, and a new key would hide the loss. A key that is lost is read back from
// HyperShift's copy.
func reconcileKeys(ctx context.Context, s *scope) step.Result {
	name := hypershift.SSHKeySecretName(s.bridge.Name)
	if err := s.applySecret(ctx, s.newOwnedSecret(name), map[string][]byte{hypershift.SSHKeyKey: s.secrets.sshKeys}); err != nil {
		return step.FromError(err, resyncInterval)
	}

	desired := s.newOwnedSecret(hypershift.EncryptionKeySecretName(s.bridge.Name))
	existing := &corev1.Secret{}

	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(desired), existing)
	if err == nil && isRestored(existing, s.bridge) {
		err = s.takeOver(ctx, existing, desired)
	}

	if err == nil {
		s.encryptionKey = existing

		return step.Done()
	}

	if !apierrors.IsNotFound(err) {
		return step.Fail(fmt.Errorf("get Secret %s/%s: %w", desired.Namespace, desired.Name, err))
	}

	var encryptionKey []byte

	switch {
	case s.hostedCluster != nil: // the Secret was lost
		copied, result := s.readKeyCopy(ctx, desired)
		if !result.IsDone() {
			return result
		}

		encryptionKey = copied
	case s.hasCreatedHostedCluster():
		return step.Done() // reconcileHostedCluster reports that the HostedCluster is lost
	default:
		encryptionKey = make([]byte, encryptionKeyBytes)
		_, _ = rand.Read(encryptionKey) // rand.Read never returns an error
	}

	desired.Data = map[string][]byte{hypershift.EncryptionKeyKey: encryptionKey}
	if err := s.Client.Create(ctx, desired, client.FieldOwner(fieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(s.newWriteError(err, "create", desired, v1alpha1.ReasonCreationFailed))
	}

	s.encryptionKey = desired

	return step.Done()
}

// readKeyCopy returns the encryption key from the Secret into which HyperShift has copied it, in the namespace of the
// control plane (hypershift-operator, hostedcluster_controller.go). The step stalls if there is no copy.
func (s *scope) readKeyCopy(ctx context.Context, lost *corev1.Secret) ([]byte, step.Result) {
	name := client.ObjectKey{
		Namespace: hypershift.ControlPlaneNamespace(s.bridge.Namespace, s.bridge.Name), Name: lost.Name,
	}

	secret, err := credential.ReadSecret(ctx, s.APIReader, name, hypershift.EncryptionKeyKey)
	if err != nil && !credential.IsMissing(err) {
		return nil, step.FromError(err, resyncInterval)
	}

	if err != nil || len(secret.Data[hypershift.EncryptionKeyKey]) != encryptionKeyBytes {
		return nil, step.Stall(v1alpha1.ReasonNotFound, fmt.Sprintf(
			"Secret %s/%s with the key that encrypts the cluster's Secrets does not exist, and HyperShift has no copy in "+
				"namespace %s: restore it from a backup, or delete the bridge and create a new one, which loses the cluster's data",
			lost.Namespace, lost.Name, name.Namespace))
	}

	return secret.Data[hypershift.EncryptionKeyKey], step.Done()
}

// markCreated writes into the Secret with the encryption key that the HostedCluster was created. If the
// bridge's status is lost, the mark tells a lost HostedCluster from one that was never created.
func (s *scope) markCreated(ctx context.Context) error {
	if s.encryptionKey == nil || s.encryptionKey.Annotations[annotationCreated] != "" {
		return nil
	}

	if s.encryptionKey.Annotations == nil {
		s.encryptionKey.Annotations = map[string]string{}
	}

	s.encryptionKey.Annotations[annotationCreated] = "true"

	if err := s.Client.Update(ctx, s.encryptionKey, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("mark Secret %s: %w", client.ObjectKeyFromObject(s.encryptionKey), err)
	}

	return nil
}

// newOwnedSecret returns a Secret of the bridge without data.
func (s *scope) newOwnedSecret(name string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.bridge.Namespace, Name: name, Labels: hypershift.BridgeLabels(s.bridge),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.bridge, v1alpha1.GroupVersion.WithKind(kindBridge)),
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

	if isRestored(existing, s.bridge) {
		if err := s.takeOver(ctx, existing, desired); err != nil {
			return err
		}
	}

	isSame := len(existing.Data) == len(data)
	for name, value := range data {
		isSame = isSame && bytes.Equal(existing.Data[name], value)
	}

	if isSame {
		return nil
	}

	existing.Data = data
	if err := s.Client.Update(ctx, existing, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("update Secret %s: %w", key, err)
	}

	return nil
}

// keepSecrets keeps the Secrets that the HostedCluster refers to, and their sources.
func (s *scope) keepSecrets(ctx context.Context) error {
	var secrets []types.NamespacedName
	for _, name := range []string{
		s.bridge.Spec.PullSecretRef.Name, s.bridge.Spec.SSHKeySecretRef.Name,
		hypershift.SSHKeySecretName(s.bridge.Name), hypershift.EncryptionKeySecretName(s.bridge.Name),
	} {
		secrets = append(secrets, types.NamespacedName{Namespace: s.bridge.Namespace, Name: name})
	}

	return s.Keeper.Keep(ctx, s.bridge, secrets...)
}

// reportSecrets reports the error of keepSecrets, which ran before the steps.
func reportSecrets(_ context.Context, s *scope) step.Result {
	return keep.Report(s.bridge, s.keepError)
}

// releaseSecrets releases the Secrets of a bridge whose HostedCluster is deleted.
func releaseSecrets(ctx context.Context, s *scope) step.Result {
	return s.Keeper.ReleaseStep(ctx, s.bridge)
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
// gone, because only other bridges and other programs can keep it.
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
