// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

const kindMachine = "KubevirtMachine"

// readBack reads the addresses of the machine back from its VirtualMachine, if the status has none or if the
// VirtualMachine belongs to an earlier object with the machine's name. Both happen if objects were restored
// from a backup without their status. The step runs before anything is allocated.
func readBack(ctx context.Context, s *scope) step.Result {
	config := s.machine.Spec.BootstrapNetworkConfig
	isRecorded := config != nil && len(s.machine.Status.AllocatedBootstrapAddresses[config.Interface]) > 0

	if s.vm == nil && !isRecorded {
		var err error
		if s.vm, err = s.getObject(ctx, s.APIReader, kubevirt.NewObject(kubevirt.VirtualMachineKind())); err != nil {
			return step.Fail(err)
		}
	}

	if s.vm == nil {
		s.Addresses.MarkRead(kubevirt.OwnerKey(s.machine))

		return step.Done()
	}

	isRestored := kubevirt.IsRestored(s.vm, s.machine)
	if !isRestored && (isRecorded || !isOwned(s.vm, s.machine)) {
		return step.Done()
	}

	if s.machine.Status.Phase == "" {
		s.machine.Status.Phase = v1alpha1.KubevirtMachineProvisioning
	}

	owner := kubevirt.OwnerKey(s.machine)

	// A person may have removed the addresses from the status to get others.
	isLost := isRestored || len(s.machine.Status.Conditions) == 0 || s.Addresses.IsUnread(owner)

	if config != nil && isLost {
		if result := s.readAddresses(ctx, owner); !result.IsDone() {
			return result
		}
	}

	if isRestored && s.vm.GetDeletionTimestamp() == nil {
		return s.takeOverVM(ctx)
	}

	return step.Done()
}

// readAddresses records the addresses of the VirtualMachine in the status and in the address registry.
func (s *scope) readAddresses(ctx context.Context, owner string) step.Result {
	pool := kubevirt.PoolName(s.machine.Namespace, s.machine.Labels[v1alpha1.LabelNodePool])

	if s.machine.Labels[v1alpha1.LabelNodePool] != "" && len(s.Addresses.AddressesOf(owner)) == 0 {
		s.Addresses.MarkUnread(pool, owner) // before the read, so that nobody gets the addresses meanwhile
	}

	assigned, err := s.findAddresses(ctx)

	switch {
	case err != nil:
		return s.stallUnknown(err)
	case len(assigned.Addresses) == 0: // the VirtualMachine has no static addresses
		s.Addresses.MarkRead(owner)

		return step.Done()
	}

	prefix := kubevirt.OwnerKeyPrefix(s.machine.Namespace, s.machine.Name)
	if err := s.Addresses.Inherit(prefix, owner); err != nil {
		return step.Fail(err)
	}

	config := s.machine.Spec.BootstrapNetworkConfig
	s.machine.Status.AllocatedBootstrapAddresses = map[string][]string{config.Interface: toStrings(assigned.Addresses)}
	s.machine.Status.BootstrapNetwork = assigned.Network

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(fmt.Errorf("save addresses of the virtual machine: %w", err))
	}

	s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "AddressesReadBack", "Allocate",
		"the VirtualMachine has %s", formatAddresses(assigned.Addresses))

	result := s.verifyAddresses()
	s.Addresses.MarkRead(owner) // also if another machine has them, because they are known now

	return result
}

// findAddresses returns the addresses in the annotations of the VirtualMachine. A VirtualMachine of an older
// version has no annotations, so they are read from its Secret with network data.
func (s *scope) findAddresses(ctx context.Context) (kubevirt.Assigned, error) {
	network, err := kubevirt.NetworkKey(s.machine)
	if err != nil {
		return kubevirt.Assigned{}, err
	}

	if annotations := s.vm.GetAnnotations(); annotations[v1alpha1.AnnotationAddresses] != "" &&
		annotations[v1alpha1.AnnotationNetwork] == "" { // a person wrote the addresses
		annotations[v1alpha1.AnnotationNetwork] = network
		s.vm.SetAnnotations(annotations)
	}

	assigned, err := kubevirt.ReadAddresses(s.vm)
	if err != nil || len(assigned.Addresses) > 0 {
		return assigned, err
	}

	name := kubevirt.NetworkDataSecret(s.vm)
	if name == "" {
		return kubevirt.Assigned{}, nil
	}

	var secret corev1.Secret
	if err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: s.vm.GetNamespace(), Name: name}, &secret); err != nil {
		if apierrors.IsForbidden(err) {
			err = errors.New("the operator may not read it")
		}

		return kubevirt.Assigned{}, fmt.Errorf("read Secret %s with its network data: %w", name, err)
	}

	addresses, err := parseNetworkData(secret.Data[kubevirt.NetworkDataKey], s.machine.Spec.BootstrapNetworkConfig.Interface)
	if err != nil {
		return kubevirt.Assigned{}, fmt.Errorf("read Secret %s with its network data: %w", name, err)
	}

	return kubevirt.Assigned{Network: network, Addresses: addresses}, nil
}

// parseNetworkData returns the static addresses of an interface in network data.
func parseNetworkData(data []byte, name string) ([]netip.Prefix, error) {
	network, _, err := netdata.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("parse network data: %w", err)
	}

	for i := range network.Links {
		link := &network.Links[i]
		if (link.Name == name || link.ID == name) && len(link.Addresses) > 0 {
			return link.Addresses, nil
		}
	}

	return nil, fmt.Errorf("parse network data: interface %s has no static address", name)
}

// stallUnknown stalls the machine until a person has written down its addresses. Until then, its pool allocates
// no new addresses. If the Secret with the network data does not exist either, the addresses can only be read
// in the guest.
func (s *scope) stallUnknown(err error) step.Result {
	namespace, name := s.vm.GetNamespace(), s.vm.GetName()
	readCommand := fmt.Sprintf("kubectl get secret %s -n %s -o go-template='{{.data.%s | base64decode}}'",
		kubevirt.NetworkDataSecret(s.vm), namespace, kubevirt.NetworkDataKey)

	if apierrors.IsNotFound(err) {
		readCommand = fmt.Sprintf("kubectl get virtualmachineinstance %s -n %s -o jsonpath='{.status.interfaces}'", name, namespace)
	}

	annotateCommand := fmt.Sprintf("kubectl annotate virtualmachine %s -n %s --overwrite %s=ADDRESS/PREFIXLENGTH",
		name, namespace, v1alpha1.AnnotationAddresses)

	return s.stall("AddressesUnknown", fmt.Sprintf(
		"the addresses of VirtualMachine %s are unknown: %v: read them with %s, and write them down with %s",
		name, err, readCommand, annotateCommand))
}

// takeOverVM makes the machine the owner of the VirtualMachine. The Secret with network data still has the
// earlier owner and may be deleted with it, so the VirtualMachine gets another one.
func (s *scope) takeOverVM(ctx context.Context) step.Result {
	if result := ensureNetworkData(ctx, s); !result.IsDone() {
		return result
	}

	before := s.vm.DeepCopy()
	kubevirt.TakeOver(s.vm, s.machine, kindMachine)
	kubevirt.RecordAddresses(s.vm, s.machine)

	if s.network.name != "" {
		kubevirt.SetNetworkDataSecret(s.vm, s.network.name)
	}

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, s.vm, patch); err != nil {
		return step.Fail(fmt.Errorf("take over virtual machine: %w", err))
	}

	s.Recorder.Eventf(s.machine, nil, corev1.EventTypeNormal, "VMTakenOver", "Create",
		"the VirtualMachine of the machine before its restore is used again")

	return step.Done()
}
