// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// Assigned are the addresses that a VirtualMachine says it is configured with.
type Assigned struct {
	// Network is the key of the network in the address registry.
	Network   string
	Addresses []netip.Prefix
}

// RecordAddresses writes the machine's addresses into the annotations of its VirtualMachine, where they
// survive the loss of the machine's status. It returns whether the annotations have changed.
func RecordAddresses(vm *unstructured.Unstructured, machine *v1alpha1.KubevirtMachine) (hasChanged bool) {
	config := machine.Spec.BootstrapNetworkConfig
	if config == nil {
		return false
	}

	addresses := strings.Join(machine.Status.AllocatedBootstrapAddresses[config.Interface], ",")
	annotations := vm.GetAnnotations()

	if addresses == "" || annotations[v1alpha1.AnnotationAddresses] == addresses &&
		annotations[v1alpha1.AnnotationNetwork] == machine.Status.BootstrapNetwork {
		return false
	}

	if annotations == nil {
		annotations = map[string]string{}
	}

	annotations[v1alpha1.AnnotationAddresses] = addresses
	annotations[v1alpha1.AnnotationNetwork] = machine.Status.BootstrapNetwork
	vm.SetAnnotations(annotations)

	return true
}

// ReadAddresses returns the addresses in the annotations of a VirtualMachine. Without annotations, it returns
// no addresses. It returns an error if the annotations are invalid, or if the VirtualMachine is not attached
// to the network.
func ReadAddresses(vm *unstructured.Unstructured) (Assigned, error) {
	annotations := vm.GetAnnotations()
	out := Assigned{Network: annotations[v1alpha1.AnnotationNetwork]}

	text := annotations[v1alpha1.AnnotationAddresses]
	if text == "" {
		return Assigned{}, nil
	}

	for part := range strings.SplitSeq(text, ",") {
		address, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return Assigned{}, fmt.Errorf("parse annotation %s: %q is not an address with a prefix length",
				v1alpha1.AnnotationAddresses, part)
		}

		out.Addresses = append(out.Addresses, address)
	}

	var attached []string

	for _, network := range listItems(vm.Object, podNetworksPath...) {
		definition, _, _ := unstructured.NestedString(network, "multus", "networkName")
		if definition == "" {
			continue
		}

		definition = qualifyName(definition, vm.GetNamespace())
		if definition == out.Network {
			return out, nil
		}

		attached = append(attached, definition)
	}

	return Assigned{}, fmt.Errorf("check annotation %s: the VirtualMachine is not attached to %q, but to %q",
		v1alpha1.AnnotationNetwork, out.Network, attached)
}

// IsRestored returns whether a VirtualMachine belongs to an earlier object with the machine's name. This is
// the case after the machine was restored from a backup, because a restored object has another UID, and its
// VirtualMachine still has the old UID as its owner, or no owner.
func IsRestored(vm *unstructured.Unstructured, machine *v1alpha1.KubevirtMachine) bool {
	return vm.GetLabels()[v1alpha1.LabelMachine] == machine.Name && HasNoOrEarlierOwner(vm, machine, "KubevirtMachine")
}

// HasNoOrEarlierOwner returns whether the controller of an object is missing, or is an earlier object with the name and
// the kind of owner. kind is the kind of owner in this API group.
func HasNoOrEarlierOwner(object, owner client.Object, kind string) bool {
	ref := metav1.GetControllerOf(object)

	return ref == nil || strings.HasPrefix(ref.APIVersion, v1alpha1.GroupVersion.Group+"/") && ref.Kind == kind &&
		ref.Name == owner.GetName() && ref.UID != owner.GetUID()
}

// TakeOver makes owner the controller of an object that an earlier object with its name had.
func TakeOver(object, owner client.Object, kind string) {
	refs := make([]metav1.OwnerReference, 0, 1)

	for _, ref := range object.GetOwnerReferences() {
		if ref.Controller == nil || !*ref.Controller {
			refs = append(refs, ref)
		}
	}

	object.SetOwnerReferences(append(refs, *metav1.NewControllerRef(owner, v1alpha1.GroupVersion.WithKind(kind))))
}

// InterfaceMAC returns the MAC address that a VirtualMachine's interface has. It is empty if there is no such
// interface, or if the VirtualMachine names no address.
func InterfaceMAC(vm *unstructured.Unstructured, name string) string {
	mac, _ := findItem(vm.Object, name, append(podDevicesPath, "interfaces")...)["macAddress"].(string)

	return mac
}
