// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Names of the files in a cloud-init Secret (cloud-init, datasource NoCloud).
const (
	fileUserData = "user-data"
	fileMetaData = "meta-data"
	fileNetwork  = "network-config"
)

// maxSeed is the maximum size of a Secret in bytes (api/core/v1, MaxSecretSize).
const maxSeed = 1 << 20

// ensureSeedSecret creates the machine's cloud-init Secret if it does not exist. It first deletes a
// Secret of the same name that an earlier machine of the claim has left.
func (p *Provider) ensureSeedSecret(
	ctx context.Context, vm *virtv1.VirtualMachine, m hypervisor.Machine, seed func(context.Context) (hypervisor.Seed, error),
) error {
	old, err := getOrNil(ctx, p, vm.Name, &corev1.Secret{})
	if err != nil {
		return err
	}

	if old != nil {
		switch _, isOurs := p.identity.claimRecord(old, m.Owner); {
		case !isOurs:
			return hypervisor.Errorf(hypervisor.Rejected, "SeedNameTaken",
				"create cloud-init Secret: Secret %s exists already and has another owner: delete it", p.objectKey(vm.Name))
		case metav1.IsControlledBy(old, vm):
			return nil
		}

		// The Secret belongs to an earlier VirtualMachine that no longer exists. Its credential is not
		// for this machine.
		if err := p.deleteSeedSecret(ctx, old); err != nil {
			return err
		}
	}

	content, err := seed(ctx)
	if err != nil {
		return fmt.Errorf("create cloud-init Secret: %w", err)
	}

	secret, err := p.buildSeedSecret(vm, m, content)
	if err != nil {
		return err
	}

	call, cancel := p.withCallTimeout(ctx)
	defer cancel()

	// If another process has created the Secret at the same time, that Secret is the machine's.
	if err := p.api.Create(call, secret); !apierrors.IsAlreadyExists(err) {
		return wrapAPIError(fmt.Sprintf("create cloud-init Secret %s", p.objectKey(vm.Name)), writeCall, err)
	}

	return nil
}

// buildSeedSecret returns the Secret with the machine's cloud-init data. The VirtualMachine owns it, so
// Kubernetes deletes both together.
func (p *Provider) buildSeedSecret(
	vm *virtv1.VirtualMachine, m hypervisor.Machine, seed hypervisor.Seed,
) (*corev1.Secret, error) {
	labels, annotations, err := p.identity.newMetadata(m.ID, m.Owner, hypervisor.NetworkOptions{}, nil, m.CreatedAt)
	if err != nil {
		return nil, err
	}

	data := map[string][]byte{fileUserData: seed.UserData, fileMetaData: seed.MetaData}
	if len(seed.NetworkConfig) > 0 {
		data[fileNetwork] = seed.NetworkConfig
	}

	maps.Copy(data, seed.Files)

	size := 0
	for _, content := range data {
		size += len(content)
	}

	if size > maxSeed {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "SeedTooLarge",
			"create cloud-init Secret: its data has %d bytes, and a Secret can hold %d bytes: remove files from "+
				"cloudInit.userData, or install them in the image, which is best for the bootstrap service", size, maxSeed)
	}

	// BlockOwnerDeletion would need a permission for the finalizers of VirtualMachines. It is not
	// necessary, because the deletion of the machine need not wait for the Secret.
	owner := *metav1.NewControllerRef(vm, virtv1.VirtualMachineGroupVersionKind)
	owner.BlockOwnerDeletion = nil

	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vm.Namespace, Name: vm.Name, Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Type: corev1.SecretTypeOpaque, Data: data,
	}, nil
}

// emptySeedSecret deletes the data of the machine's cloud-init Secret. It does not delete the Secret,
// because KubeVirt mounts the Secret again if the machine migrates to another node.
func (p *Provider) emptySeedSecret(ctx context.Context, vm *virtv1.VirtualMachine) error {
	secret, err := getOrNil(ctx, p, vm.Name, &corev1.Secret{})
	if err != nil || secret == nil || len(secret.Data) == 0 || !metav1.IsControlledBy(secret, vm) {
		return err
	}

	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"data":null}`, secret.UID)

	err = p.api.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return nil
	}

	return wrapAPIError(fmt.Sprintf("empty cloud-init Secret %s", p.objectKey(vm.Name)), writeCall, err)
}

// deleteSeedSecret deletes the Secret if its UID has not changed since it was read.
func (p *Provider) deleteSeedSecret(ctx context.Context, secret *corev1.Secret) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	err := p.api.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	if apierrors.IsNotFound(err) {
		return nil
	}

	return wrapAPIError(fmt.Sprintf("delete cloud-init Secret %s", p.objectKey(secret.Name)), writeCall, err)
}
