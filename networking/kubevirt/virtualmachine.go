// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// Kinds of KubeVirt.
func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "kubevirt.io", Version: "v1"}
}

// VirtualMachineKind is kubevirt.io/v1 VirtualMachine.
func VirtualMachineKind() schema.GroupVersionKind {
	return groupVersion().WithKind("VirtualMachine")
}

// InstanceKind is kubevirt.io/v1 VirtualMachineInstance.
func InstanceKind() schema.GroupVersionKind {
	return groupVersion().WithKind("VirtualMachineInstance")
}

// New is an empty object of a kind.
func New(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)

	return object
}

// Names of a cloud-init drive's volume source, by the format of network data.
const (
	driveConfigDrive = "cloudInitConfigDrive"
	driveNoCloud     = "cloudInitNoCloud"
)

const (
	// machineMark stands for the machine's name in the name of a Secret with user data.
	machineMark = "$(machine)"
	// maxName is what the name of a Secret may have.
	maxName = 253
)

// NetworkDataKey is the key of network data in a Secret: what KubeVirt looks for
// (pkg/cloud-init).
const NetworkDataKey = "networkdata"

var (
	podNetworks = []string{"spec", "template", "spec", "networks"}          //nolint:gochecknoglobals // as above
	podVolumes  = []string{"spec", "template", "spec", "volumes"}           //nolint:gochecknoglobals // as above
	podDevices  = []string{"spec", "template", "spec", "domain", "devices"} //nolint:gochecknoglobals // as above
)

// maxValues is what a virtualMachineTemplate may have. One has some hundred.
const maxValues = 10000

// CheckTemplate refuses a virtualMachineTemplate that is too large to be read.
func CheckTemplate(raw []byte) error {
	if err := inputbound.JSON(raw, maxValues); err != nil {
		return fmt.Errorf("read virtualMachineTemplate: %w", err)
	}

	return nil
}

// template reads the machine's virtualMachineTemplate. What it gives is the caller's own.
func template(machine *v1alpha1.KubevirtMachine) (fields, error) {
	if err := CheckTemplate(machine.Spec.VirtualMachineTemplate.Raw); err != nil {
		return nil, err
	}

	var out fields
	if err := json.Unmarshal(machine.Spec.VirtualMachineTemplate.Raw, &out); err != nil || out == nil {
		return nil, errors.New("read virtualMachineTemplate: it must be an object with the spec of a VirtualMachine")
	}

	return out, nil
}

// item is the entry of a list with a name; nil if there is none.
func item(object fields, name string, path ...string) fields {
	for _, entry := range items(object, path...) {
		if entry["name"] == name {
			return entry
		}
	}

	return nil
}

// items are the entries of a list. Changing one changes the object.
func items(object fields, path ...string) []fields {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	entries, _ := value.(list)
	out := make([]fields, 0, len(entries))

	for _, entry := range entries {
		if m, ok := entry.(fields); ok {
			out = append(out, m)
		}
	}

	return out
}

// add puts an entry at the end of a list.
func add(object, entry fields, path ...string) error {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	entries, _ := value.(list)

	if err := unstructured.SetNestedSlice(object, append(entries[:len(entries):len(entries)], entry), path...); err != nil {
		return fmt.Errorf("add to %s: %w", path[len(path)-1], err)
	}

	return nil
}

// MAC is the address of the machine's interface with static addresses: the template's, or
// one made from the machine's uid, which stays the same over stop and migration.
func MAC(machine *v1alpha1.KubevirtMachine) (string, error) {
	vm, err := template(machine)
	if err != nil {
		return "", err
	}

	nic := item(vm, machine.Spec.BootstrapNetworkConfig.NetworkName, append(podDevices, "interfaces")...)
	if nic == nil {
		return "", fmt.Errorf(
			"find interface %q: virtualMachineTemplate has none of this name in spec.template.spec.domain.devices.interfaces",
			machine.Spec.BootstrapNetworkConfig.NetworkName)
	}

	if mac, ok := nic["macAddress"].(string); ok && mac != "" {
		return mac, nil
	}

	sum := sha256.Sum256([]byte(machine.UID))

	// 02 is what marks an address as locally administered (IEEE 802, 8.4).
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String(), nil
}

// VirtualMachine is what KubeVirt is asked for. With static addresses, secret names the
// Secret with the machine's network data of the format.
func VirtualMachine(machine *v1alpha1.KubevirtMachine, secret string, format netdata.Format) (*unstructured.Unstructured, error) {
	content, err := template(machine)
	if err != nil {
		return nil, err
	}

	vm := &unstructured.Unstructured{Object: content}
	labels, annotations := vm.GetLabels(), vm.GetAnnotations()
	delete(content, "metadata") // no name, owner or finalizer but ours
	vm.SetGroupVersionKind(VirtualMachineKind())
	vm.SetNamespace(machine.Namespace)
	vm.SetName(machine.Name)
	vm.SetLabels(marked(machine, labels))
	vm.SetAnnotations(annotations)
	vm.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(machine, v1alpha1.GroupVersion.WithKind("KubevirtMachine")),
	})

	instance, _, _ := unstructured.NestedStringMap(content, "spec", "template", "metadata", "labels")
	err = unstructured.SetNestedStringMap(content, marked(machine, instance), "spec", "template", "metadata", "labels")
	if err != nil {
		return nil, fmt.Errorf("label the instance: %w", err)
	}

	if err := ownDataVolumes(content, machine.Name); err != nil {
		return nil, err
	}

	if err := ownUserData(content, machine.Name); err != nil {
		return nil, err
	}

	if machine.Spec.BootstrapNetworkConfig == nil {
		return vm, nil
	}

	mac, err := MAC(machine)
	if err != nil {
		return nil, err
	}

	item(content, machine.Spec.BootstrapNetworkConfig.NetworkName, append(podDevices, "interfaces")...)["macAddress"] = mac

	return vm, attachNetworkData(content, secret, format)
}

// marked adds our labels.
func marked(machine *v1alpha1.KubevirtMachine, labels map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, labels)

	for _, key := range []string{v1alpha1.LabelNodePool, v1alpha1.LabelCluster} {
		if value := machine.Labels[key]; value != "" {
			out[key] = value
		}
	}

	out[v1alpha1.LabelMachine] = machine.Name

	return out
}

// ownDataVolumes gives the machine's data volumes names of their own, as the template's
// would be the same for all machines.
func ownDataVolumes(vm fields, machine string) error {
	renamed := map[string]string{}

	for _, volume := range items(vm, "spec", "dataVolumeTemplates") {
		name, _, _ := unstructured.NestedString(volume, "metadata", "name")
		if name == "" {
			return errors.New("read virtualMachineTemplate: one of spec.dataVolumeTemplates has no metadata.name")
		}

		renamed[name] = machine + "-" + name
		if err := unstructured.SetNestedField(volume, renamed[name], "metadata", "name"); err != nil {
			return fmt.Errorf("name data volume %s: %w", name, err)
		}
	}

	for _, volume := range items(vm, podVolumes...) {
		name, _, _ := unstructured.NestedString(volume, "dataVolume", "name")
		if own, found := renamed[name]; found {
			volume["dataVolume"] = fields{"name": own}
		}
	}

	return nil
}

// ownUserData names the Secret with the machine's own user data, where the template has one
// for each machine.
func ownUserData(vm fields, machine string) error {
	for _, volume := range items(vm, podVolumes...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			name, _, _ := unstructured.NestedString(volume, source, "secretRef", "name")
			if !strings.Contains(name, machineMark) {
				continue
			}

			own := strings.ReplaceAll(name, machineMark, machine)
			if len(own) > maxName {
				return fmt.Errorf("name the Secret with user data: %s has more than %d characters: shorten userDataSecretRef.name",
					own, maxName)
			}

			if err := unstructured.SetNestedField(volume, own, source, "secretRef", "name"); err != nil {
				return fmt.Errorf("name the Secret with user data: %w", err)
			}
		}
	}

	return nil
}

// attachNetworkData puts network data on the cloud-init drive that is there, or on a new
// one.
func attachNetworkData(vm fields, secret string, format netdata.Format) error {
	source, other := driveConfigDrive, driveNoCloud
	if format == netdata.V2 {
		source, other = other, source
	}

	for _, volume := range items(vm, podVolumes...) {
		if _, there := volume[other]; there {
			return fmt.Errorf(
				"attach network data: volume %q of virtualMachineTemplate is %s, and the network data are %s's: make both of one format",
				volume["name"], other, source)
		}

		if drive, there := volume[source].(fields); there {
			drive["networkDataSecretRef"] = fields{"name": secret}

			return nil
		}
	}

	if err := add(vm, fields{"name": cloudInitDisk, "disk": fields{"bus": "virtio"}}, append(podDevices, "disks")...); err != nil {
		return err
	}

	return add(vm, fields{
		"name": cloudInitDisk, source: fields{"networkDataSecretRef": fields{"name": secret}},
	}, podVolumes...)
}

// NetworkDataSecret is the Secret that a VirtualMachine's network data are in; empty if it
// has none.
func NetworkDataSecret(vm *unstructured.Unstructured) string {
	for _, volume := range items(vm.Object, podVolumes...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			if name, found, _ := unstructured.NestedString(volume, source, "networkDataSecretRef", "name"); found {
				return name
			}
		}
	}

	return ""
}

// SetNetworkDataSecret has a VirtualMachine take its network data from another Secret at
// its next start.
func SetNetworkDataSecret(vm *unstructured.Unstructured, secret string) {
	for _, volume := range items(vm.Object, podVolumes...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			if drive, there := volume[source].(fields); there {
				drive["networkDataSecretRef"] = fields{"name": secret}

				return
			}
		}
	}
}
