// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// networkSecret is what the machine's network data lie in.
type networkSecret struct {
	name   string
	data   []byte
	format netdata.Format
}

// networkData puts the addresses into the machine's network data, and those into a Secret
// that is named after them and never changes, so that the operator need not be able to
// read Secrets.
func networkData(ctx context.Context, s *scope) step.Result {
	if s.machine.Spec.BootstrapNetworkConfig == nil {
		return step.Done().WithReason("DHCP", "")
	}

	addresses, err := s.addresses()
	if err != nil {
		return s.stall("InvalidAddresses", err.Error())
	}

	data, format, err := kubevirt.NetworkData(s.machine, addresses)
	if err != nil {
		return s.stall("InvalidNetworkData", err.Error())
	}

	sum := sha256.Sum256(data)
	s.network = networkSecret{
		name: s.machine.Name + "-network-" + hex.EncodeToString(sum[:4]), data: data, format: format,
	}

	if s.vm != nil && kubevirt.NetworkDataSecret(s.vm) == s.network.name && running(s.vm) {
		return step.Done() // it has been read
	}

	immutable := true
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.machine.Namespace, Name: s.network.name,
			Labels: map[string]string{v1alpha1.LabelMachine: s.machine.Name},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.machine, v1alpha1.GroupVersion.WithKind("KubevirtMachine")),
			},
		},
		Immutable: &immutable,
		Data:      map[string][]byte{kubevirt.NetworkDataKey: data},
	}

	if err := s.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(fmt.Errorf("create secret %s with network data: %w", secret.Name, err))
	}

	return step.Done()
}

// create has KubeVirt make the VirtualMachine.
func create(ctx context.Context, s *scope) step.Result {
	if s.vm == nil {
		return s.make(ctx)
	}

	if !metav1.IsControlledBy(s.vm, s.machine) {
		return s.stall("VMNotOurs", fmt.Sprintf(
			"there is a VirtualMachine %q that does not belong to this machine: delete one of the two", s.vm.GetName()))
	}

	if s.vm.GetDeletionTimestamp() != nil {
		return step.Wait(lookAgain, "VMDeleting",
			"its VirtualMachine is being deleted by somebody else; it is made again with the same addresses")
	}

	if s.network.name == "" || kubevirt.NetworkDataSecret(s.vm) == s.network.name {
		return step.Done()
	}

	// The addresses on record are not those that the VirtualMachine was made with, which
	// is what a person does who fixes two machines with one address.
	before := s.vm.DeepCopy()
	kubevirt.SetNetworkDataSecret(s.vm, s.network.name)

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, s.vm, patch); err != nil {
		return step.Fail(fmt.Errorf("give virtual machine other network data: %w", err))
	}

	s.Recorder.Eventf(s.machine, nil, corev1.EventTypeWarning, "NetworkDataChanged", "Configure",
		"the VirtualMachine gets its new addresses when it is restarted")

	return step.Done()
}

// make asks KubeVirt for the VirtualMachine.
func (s *scope) make(ctx context.Context) step.Result {
	vm, err := kubevirt.VirtualMachine(s.machine, s.network.name, s.network.format)
	if err != nil {
		return s.stall("InvalidTemplate", err.Error())
	}

	s.machine.Status.Phase = v1alpha1.KubevirtMachineProvisioning

	switch err := s.Client.Create(ctx, vm); {
	case apierrors.IsAlreadyExists(err):
		return s.adopt(ctx)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
		return s.stall("VMRejected", fmt.Sprintf("create virtual machine: %v", err))
	case err != nil:
		return step.Fail(fmt.Errorf("create virtual machine: %w", err))
	}

	s.vm = vm

	return step.Done()
}

// adopt reads a VirtualMachine that the cache did not have yet.
func (s *scope) adopt(ctx context.Context) step.Result {
	vm, err := s.read(ctx, s.Live, kubevirt.New(kubevirt.VirtualMachineKind()))

	switch {
	case err != nil:
		return step.Fail(err)
	case vm == nil:
		return step.Wait(lookAgain, "VMDeleting", "a VirtualMachine of its name has just gone")
	}

	s.vm = vm

	return create(ctx, s)
}

// running says whether a VirtualMachine has an instance that has started.
func running(vm *unstructured.Unstructured) bool {
	ready, _, _ := unstructured.NestedBool(vm.Object, "status", "ready")

	return ready
}

// printable is KubeVirt's one word for a VirtualMachine's state.
func printable(vm *unstructured.Unstructured) string {
	status, _, _ := unstructured.NestedString(vm.Object, "status", "printableStatus")

	return status
}

// follow reports what becomes of the VirtualMachine.
func follow(_ context.Context, s *scope) step.Result {
	status := &s.machine.Status
	status.Ready = running(s.vm)
	status.ProviderID = "kubevirt://" + s.machine.Name

	if s.instance != nil {
		if node, _, _ := unstructured.NestedString(s.instance.Object, "status", "nodeName"); node != "" {
			status.NodeName = node
		}
	}

	word := printable(s.vm)

	switch {
	case status.Ready:
		status.Phase = v1alpha1.KubevirtMachineRunning

		return step.Done().WithReason("Running", "on node "+status.NodeName)
	case slices.Contains([]string{"Stopped", "Stopping", "Paused"}, word):
		status.Phase = v1alpha1.KubevirtMachineStopped

		return step.Wait(0, word, "the VirtualMachine was stopped by somebody; it keeps its addresses")
	case word == "":
		word = "Provisioning"
	}

	status.Phase = v1alpha1.KubevirtMachineProvisioning

	return step.Wait(0, word, why(s.vm))
}

// why is what KubeVirt says of a VirtualMachine that is not ready.
func why(vm *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(vm.Object, "status", "conditions")

	for _, entry := range conditions {
		condition, _ := entry.(map[string]any)
		bad := condition["type"] == "Failure" && condition["status"] == "True" ||
			condition["type"] == "Ready" && condition["status"] == "False"

		if message, _ := condition["message"].(string); bad && message != "" {
			return message
		}
	}

	return "the VirtualMachine does not run yet"
}
