// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ensureVolumes creates the disks of the machine's dataVolumeTemplates. It returns true if all disks
// exist.
func (c *Cluster) ensureVolumes(ctx context.Context, vm *virtv1.VirtualMachine) (allExist bool, err error) {
	allReady := true

	for i := range vm.Spec.DataVolumeTemplates {
		exists, err := c.ensureVolume(ctx, vm, &vm.Spec.DataVolumeTemplates[i])
		if err != nil {
			return false, err
		}

		allReady = allReady && exists
	}

	return allReady, nil
}

func (c *Cluster) ensureVolume(
	ctx context.Context, vm *virtv1.VirtualMachine, template *virtv1.DataVolumeTemplateSpec,
) (bool, error) {
	key := client.ObjectKey{Namespace: vm.Namespace, Name: template.Name}

	volume, err := get[cdiv1.DataVolume](ctx, c, key)
	if err != nil {
		return false, err
	}

	if volume == nil {
		volume = &cdiv1.DataVolume{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		volume.Namespace = vm.Namespace
		volume.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, virtv1.VirtualMachineGroupVersionKind)}

		if err := c.client.Create(ctx, volume); err != nil {
			return false, fmt.Errorf("create DataVolume %s: %w", key, err)
		}
	}

	if volume.Status.Phase == cdiv1.Succeeded {
		return true, nil
	}

	if !c.hasElapsed(client.ObjectKeyFromObject(vm), volume.UID, "provision", c.currentDelays().Provision) {
		return false, nil
	}

	if err := c.createClaim(ctx, volume); err != nil {
		return false, err
	}

	volume.Status.Phase, volume.Status.ClaimName = cdiv1.Succeeded, volume.Name
	if err := c.client.Update(ctx, volume); err != nil {
		return false, fmt.Errorf("update DataVolume %s: %w", key, err)
	}

	return true, nil
}

// createClaim creates the PersistentVolumeClaim of a DataVolume.
func (c *Cluster) createClaim(ctx context.Context, volume *cdiv1.DataVolume) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: volume.Namespace, Name: volume.Name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(volume, cdiv1.SchemeGroupVersion.WithKind("DataVolume"))},
		},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
	}

	if storage := volume.Spec.Storage; storage != nil {
		claim.Spec.Resources, claim.Spec.StorageClassName = storage.Resources, storage.StorageClassName
	}

	if err := c.client.Create(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create PersistentVolumeClaim %s: %w", claim.Name, err)
	}

	return nil
}

// deleteVolumes deletes the machine's DataVolumes and PersistentVolumeClaims. Kubernetes' garbage
// collection would do so, but the test's API server may run without it.
func (c *Cluster) deleteVolumes(ctx context.Context, vm *virtv1.VirtualMachine) error {
	for _, template := range vm.Spec.DataVolumeTemplates {
		meta := metav1.ObjectMeta{Namespace: vm.Namespace, Name: template.Name}

		for _, obj := range []client.Object{
			&cdiv1.DataVolume{ObjectMeta: meta}, &corev1.PersistentVolumeClaim{ObjectMeta: meta},
		} {
			if err := c.deleteVolume(ctx, obj); err != nil {
				return err
			}
		}
	}

	return nil
}

func (c *Cluster) deleteVolume(ctx context.Context, obj client.Object) error {
	err := c.client.Delete(ctx, obj)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete disk %s: %w", obj.GetName(), err)
	}

	// The finalizer of Storage Object In Use Protection keeps the claim until a controller, which does not
	// run here, finds that no pod uses it.
	if _, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		finalizerPatch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))

		err := c.client.Patch(ctx, obj, finalizerPatch)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove finalizers of %s: %w", obj.GetName(), err)
		}
	}

	return nil
}
