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

// Names of the files of a cloud-init Secret (cloud-init, datasource NoCloud).
const (
	fileUserData = "user-data"
	fileMetaData = "meta-data"
	fileNetwork  = "network-config"
)

// maxSeed is the most that a Secret holds (api/core/v1, MaxSecretSize).
const maxSeed = 1 << 20

// giveSeed makes the machine's cloud-init Secret, unless it is there.
func (p *Provider) giveSeed(
	ctx context.Context, vm *virtv1.VirtualMachine, m hypervisor.Machine, seed func(context.Context) (hypervisor.Seed, error),
) error {
	old, err := fetch(ctx, p, vm.Name, &corev1.Secret{})
	if err != nil {
		return err
	}

	if old != nil {
		switch _, ours := p.id.isOf(old, m.Owner); {
		case !ours:
			return hypervisor.Errorf(hypervisor.Rejected, "SeedNameTaken",
				"make cloud-init Secret: secret %s is there already and is not this machine's", p.key(vm.Name))
		case metav1.IsControlledBy(old, vm):
			return nil
		}

		// It is left of a machine that is gone, and its credential with it.
		if err := p.deleteSeed(ctx, old); err != nil {
			return err
		}
	}

	made, err := seed(ctx)
	if err != nil {
		return fmt.Errorf("make cloud-init Secret: %w", err)
	}

	secret, err := p.buildSeed(vm, m, made)
	if err != nil {
		return err
	}

	call, cancel := p.in(ctx)
	defer cancel()

	// Two calls at once may both have made a cloud-init Secret; one of them is the machine's.
	if err := p.api.Create(call, secret); !apierrors.IsAlreadyExists(err) {
		return explain(fmt.Sprintf("make cloud-init Secret %s", p.key(vm.Name)), true, err)
	}

	return nil
}

func (p *Provider) buildSeed(
	vm *virtv1.VirtualMachine, m hypervisor.Machine, seed hypervisor.Seed,
) (*corev1.Secret, error) {
	labels, annotations, err := p.id.marks(m.ID, m.Owner, nil, m.Created)
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
			"make cloud-init Secret of %d bytes: a Secret holds %d: leave files out of cloudInit.userData, or put them into the image "+
				"(the bootstrap service is best installed there)", size, maxSeed)
	}

	// Nothing waits for the Secret: blocking the machine's deletion would need a right on its finalizers.
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

// emptySeed takes what the guest has read out of the Secret. The Secret stays: KubeVirt
// mounts it again where the machine moves to.
func (p *Provider) emptySeed(ctx context.Context, vm *virtv1.VirtualMachine) error {
	secret, err := fetch(ctx, p, vm.Name, &corev1.Secret{})
	if err != nil || secret == nil || len(secret.Data) == 0 || !metav1.IsControlledBy(secret, vm) {
		return err
	}

	ctx, cancel := p.in(ctx)
	defer cancel()

	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"data":null}`, secret.UID)

	err = p.api.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return nil
	}

	return explain(fmt.Sprintf("empty cloud-init Secret %s", p.key(vm.Name)), true, err)
}

// deleteSeed deletes a Secret that was read.
func (p *Provider) deleteSeed(ctx context.Context, secret *corev1.Secret) error {
	ctx, cancel := p.in(ctx)
	defer cancel()

	err := p.api.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	if apierrors.IsNotFound(err) {
		return nil
	}

	return explain(fmt.Sprintf("delete cloud-init Secret %s", p.key(secret.Name)), true, err)
}
