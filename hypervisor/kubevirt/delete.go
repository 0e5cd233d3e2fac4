// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Delete deletes the machine; see hypervisor.Provider. KubeVirt's finalizer keeps the VirtualMachine
// until its instance no longer exists. So a machine whose VirtualMachine does not exist does not run.
// Kubernetes garbage-collects the disk that was created for the machine.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	if _, err := p.cache.start(); err != nil {
		return err
	}

	if ref.ID == 0 {
		vm, err := p.findMachine(ctx, ref.Owner)
		if err != nil {
			return err
		}

		if vm == nil {
			return newNotFoundError(ref)
		}

		record, _ := p.identity.claimRecord(vm, ref.Owner)
		ref.ID = record.ID
	}

	name := hypervisor.MachineName(ref.Owner, ref.ID)

	// The machine is deleted before its instance, because KubeVirt would create a new instance. It is
	// also deleted before its cloud-init Secret, because the name of the Secret must not be free while
	// the machine exists.
	for _, obj := range []client.Object{&virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}} {
		exists, err := p.deleteOwned(ctx, name, obj, ref.Owner)
		if err != nil || exists {
			return err
		}
	}

	secret, err := getOrNil(ctx, p, name, &corev1.Secret{})
	if err != nil {
		return err
	}

	if secret != nil {
		if _, isOurs := p.identity.claimRecord(secret, ref.Owner); isOurs {
			if err := p.deleteSeedSecret(ctx, secret); err != nil {
				return err
			}
		}
	}

	p.ids.Release(ref.ID, ref.Owner.UID)

	return newNotFoundError(ref)
}

// deleteOwned deletes the object if it belongs to the owner. It returns false if the object does not
// exist, and true while it is being deleted.
func (p *Provider) deleteOwned(
	ctx context.Context, name string, obj client.Object, owner hypervisor.Owner,
) (exists bool, err error) {
	found, err := getOrNil(ctx, p, name, obj)
	if err != nil || found == nil {
		return false, err
	}

	if _, isOurs := p.identity.claimRecord(found, owner); !isOurs {
		return false, hypervisor.Errorf(hypervisor.NotOwned, "NotOwned",
			"delete machine %s: it has another owner and was not changed", p.objectKey(name))
	}

	if found.GetDeletionTimestamp() != nil {
		return true, nil
	}

	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	uid := found.GetUID()

	err = p.api.Delete(ctx, found, client.Preconditions{UID: &uid})
	if apierrors.IsNotFound(err) {
		return false, nil
	}

	return true, wrapAPIError(fmt.Sprintf("delete machine %s", p.objectKey(name)), writeCall, err)
}
