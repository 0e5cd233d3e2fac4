// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/dns"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// deleteVM deletes the VirtualMachine, and waits until the VirtualMachine and its instance are deleted. It
// reads both from the API server, not from the cache.
func deleteVM(ctx context.Context, s *scope) step.Result {
	s.machine.Status.Phase, s.machine.Status.Ready = v1alpha1.KubevirtMachineDeleting, false

	vm, err := s.getObject(ctx, s.APIReader, kubevirt.NewObject(kubevirt.VirtualMachineKind()))
	if err != nil {
		return step.Fail(err)
	}

	if vm != nil && isOwned(vm, s.machine) {
		if vm.GetDeletionTimestamp() == nil {
			uid := vm.GetUID()

			err := s.Client.Delete(ctx, vm, client.Preconditions{UID: &uid})
			if client.IgnoreNotFound(err) != nil {
				return step.Fail(fmt.Errorf("delete virtual machine: %w", err))
			}
		}

		return step.Wait(requeueDelay, "VMDeleting", "the VirtualMachine is being shut down")
	}

	instance, err := s.getObject(ctx, s.APIReader, kubevirt.NewObject(kubevirt.InstanceKind()))
	if err != nil {
		return step.Fail(err)
	}

	// If vm is not nil, a VirtualMachine of another owner has this name, and the instance belongs to it.
	if vm == nil && instance != nil && instance.GetLabels()[v1alpha1.LabelMachine] == s.machine.Name {
		return step.Wait(requeueDelay, "VMDeleting", "the instance of the VirtualMachine is being shut down")
	}

	return step.Done()
}

// waitForDNS waits until the machine's DNS records are deleted, so the machine's name never resolves to the
// next owner of its addresses. Package dns starts to delete the records when the machine is deleted.
func waitForDNS(ctx context.Context, s *scope) step.Result {
	registration, err := dns.FindRegistration(ctx, s.APIReader, s.machine)

	switch {
	case err != nil:
		return step.Fail(err)
	case registration == nil:
		return step.Done()
	}

	message := "its DNS records are being deleted"
	if ready := meta.FindStatusCondition(registration.Status.Conditions, step.Ready); ready != nil &&
		registration.DeletionTimestamp != nil && ready.Status == metav1.ConditionFalse &&
		ready.ObservedGeneration == registration.Generation {
		message = fmt.Sprintf("its DNS records are not deleted yet: DNSRegistration %s reports %s: %s",
			registration.Name, ready.Reason, ready.Message)
	}

	return step.Wait(requeueDelay, "RecordsLeft", message)
}

// releaseAddresses removes the addresses from the status, and releases them after this write. A rebuild
// therefore never finds two machines with the same address.
func releaseAddresses(ctx context.Context, s *scope) step.Result {
	s.machine.Status.AllocatedBootstrapAddresses = nil

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(fmt.Errorf("save released addresses: %w", err))
	}

	// An earlier write that seemed to fail may have recorded addresses that this copy does not have.
	var live v1alpha1.KubevirtMachine

	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.machine), &live)
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("get machine: %w", err))
	}

	if live.UID == s.machine.UID && len(live.Status.AllocatedBootstrapAddresses) > 0 {
		return step.Wait(time.Second, "StatusStale", "the status still has the addresses")
	}

	if freed := s.Addresses.Release(kubevirt.OwnerKey(s.machine)); len(freed) > 0 {
		s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "AddressesReleased", "Release",
			"released %d addresses for other machines", len(freed))
	}

	return step.Done()
}
