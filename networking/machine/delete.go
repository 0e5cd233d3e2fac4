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

// destroy deletes the VirtualMachine and waits until it and its instance are gone, by the
// word of the API server itself.
func destroy(ctx context.Context, s *scope) step.Result {
	s.machine.Status.Phase, s.machine.Status.Ready = v1alpha1.KubevirtMachineDeleting, false

	vm, err := s.read(ctx, s.Live, kubevirt.New(kubevirt.VirtualMachineKind()))
	if err != nil {
		return step.Fail(err)
	}

	if vm != nil && metav1.IsControlledBy(vm, s.machine) {
		if vm.GetDeletionTimestamp() == nil {
			uid := vm.GetUID()

			err := s.Client.Delete(ctx, vm, client.Preconditions{UID: &uid})
			if client.IgnoreNotFound(err) != nil {
				return step.Fail(fmt.Errorf("delete virtual machine: %w", err))
			}
		}

		return step.Wait(lookAgain, "VMDeleting", "the VirtualMachine is shut down")
	}

	instance, err := s.read(ctx, s.Live, kubevirt.New(kubevirt.InstanceKind()))
	if err != nil {
		return step.Fail(err)
	}

	// Another VirtualMachine of the name has an instance of its own.
	if vm == nil && instance != nil && instance.GetLabels()[v1alpha1.LabelMachine] == s.machine.Name {
		return step.Wait(lookAgain, "VMDeleting", "the VirtualMachine's instance is shut down")
	}

	return step.Done()
}

// unnamed waits until the machine's records are out of DNS: whoever has its addresses next
// must not be taken for it. Their removal began with the machine's deletion (package dns).
func unnamed(ctx context.Context, s *scope) step.Result {
	left, err := dns.Left(ctx, s.Live, s.machine)

	switch {
	case err != nil:
		return step.Fail(err)
	case left == nil:
		return step.Done()
	}

	message := "its DNS records are being removed"
	if ready := meta.FindStatusCondition(left.Status.Conditions, step.Ready); ready != nil &&
		left.DeletionTimestamp != nil && ready.Status == metav1.ConditionFalse && ready.ObservedGeneration == left.Generation {
		message = fmt.Sprintf("its DNS records are not removed yet: DNSRegistration %s says %s: %s",
			left.Name, ready.Reason, ready.Message)
	}

	return step.Wait(lookAgain, "RecordsLeft", message)
}

// release frees the addresses once it is on record that the machine has none: a rebuild
// never finds them with two machines.
func release(ctx context.Context, s *scope) step.Result {
	s.machine.Status.AllocatedBootstrapAddresses = nil

	if err := step.Save(ctx); err != nil {
		return step.Fail(fmt.Errorf("save released addresses: %w", err))
	}

	// The pass may have begun with a copy that lacks addresses whose write seemed lost.
	var live v1alpha1.KubevirtMachine

	err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.machine), &live)
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(fmt.Errorf("read machine back: %w", err))
	}

	if live.UID == s.machine.UID && len(live.Status.AllocatedBootstrapAddresses) > 0 {
		return step.Wait(time.Second, "StatusStale", "its addresses are on record still")
	}

	if freed := s.Addresses.Release(kubevirt.Owner(s.machine)); len(freed) > 0 {
		s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "AddressesReleased", "Release",
			"%d addresses are free for other machines", len(freed))
	}

	return step.Done()
}
