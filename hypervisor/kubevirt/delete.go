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

// Delete removes the machine; see hypervisor.Provider. KubeVirt's finalizer keeps the
// VirtualMachine until its instance is gone, so a machine that is not there runs nowhere.
// A disk that was made for it goes with it by Kubernetes' garbage collection.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	if _, err := p.view.start(); err != nil {
		return err
	}

	if ref.ID == 0 {
		vm, err := p.find(ctx, ref.Owner)
		if err != nil {
			return err
		}

		if vm == nil {
			return gone(ref)
		}

		record, _ := p.id.isOf(vm, ref.Owner)
		ref.ID = record.ID
	}

	name := nameOf(ref.Owner, ref.ID)

	// The machine goes before its instance, which would be made again, and before its
	// cloud-init Secret, whose name must not look free while the machine is there.
	for _, obj := range []client.Object{&virtv1.VirtualMachine{}, &virtv1.VirtualMachineInstance{}} {
		left, err := p.remove(ctx, name, obj, ref.Owner)
		if err != nil || left {
			return err
		}
	}

	secret, err := fetch(ctx, p, name, &corev1.Secret{})
	if err != nil {
		return err
	}

	if secret != nil {
		if _, ours := p.id.isOf(secret, ref.Owner); ours {
			if err := p.deleteSeed(ctx, secret); err != nil {
				return err
			}
		}
	}

	p.ids.Release(ref.ID, ref.Owner.UID)

	return gone(ref)
}

// remove deletes an object of the owner's, and tells whether it is still there.
func (p *Provider) remove(ctx context.Context, name string, obj client.Object, owner hypervisor.Owner) (bool, error) {
	found, err := fetch(ctx, p, name, obj)
	if err != nil || found == nil {
		return false, err
	}

	if _, ours := p.id.isOf(found, owner); !ours {
		return false, hypervisor.Errorf(hypervisor.NotOwned, "NotOwned",
			"machine %s is not this claim's and was not touched", p.key(name))
	}

	if found.GetDeletionTimestamp() != nil {
		return true, nil
	}

	ctx, cancel := p.in(ctx)
	defer cancel()

	uid := found.GetUID()

	err = p.api.Delete(ctx, found, client.Preconditions{UID: &uid})
	if apierrors.IsNotFound(err) {
		return false, nil
	}

	return true, explain(fmt.Sprintf("delete machine %s", p.key(name)), true, err)
}
