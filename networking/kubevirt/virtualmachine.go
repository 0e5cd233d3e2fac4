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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// groupVersion returns the API group and version of the KubeVirt kinds.
func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "kubevirt.io", Version: "v1"}
}

// VirtualMachineKind returns the kind kubevirt.io/v1 VirtualMachine.
func VirtualMachineKind() schema.GroupVersionKind {
	return groupVersion().WithKind("VirtualMachine")
}

// InstanceKind returns the kind kubevirt.io/v1 VirtualMachineInstance.
func InstanceKind() schema.GroupVersionKind {
	return groupVersion().WithKind("VirtualMachineInstance")
}

// NewObject returns an empty object of a kind.
func NewObject(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)

	return object
}

// Names of the volume source of a cloud-init drive. The name depends on the format of the network data.
const (
	driveConfigDrive = "cloudInitConfigDrive"
	driveNoCloud     = "cloudInitNoCloud"
)

const (
	// machinePlaceholder is the placeholder for the machine's name in the name of a Secret with user data.
	machinePlaceholder = "$(machine)"
	// maxSecretName is the maximum length of the name of a Secret.
	maxSecretName = 253
)

// NetworkDataKey is the key of the network data in a Secret. KubeVirt defines this key (pkg/cloud-init).
const NetworkDataKey = "networkdata"

// Paths of fields in a VirtualMachine.
var (
	podNetworksPath = []string{"spec", "template", "spec", "networks"}          //nolint:gochecknoglobals // a constant list
	podVolumesPath  = []string{"spec", "template", "spec", "volumes"}           //nolint:gochecknoglobals // a constant list
	podDevicesPath  = []string{"spec", "template", "spec", "domain", "devices"} //nolint:gochecknoglobals // a constant list
)

// maxValues is the maximum number of JSON values in a virtualMachineTemplate. A typical template has some
// hundred.
const maxValues = 10000

// CheckTemplate returns an error if a virtualMachineTemplate has too many values to be parsed.
func CheckTemplate(raw []byte) error {
	if err := bounds.CheckJSON(raw, maxValues); err != nil {
		return fmt.Errorf("parse virtualMachineTemplate: %w", err)
	}

	return nil
}

// parseTemplate parses the machine's virtualMachineTemplate. The caller may change the result.
func parseTemplate(machine *v1alpha1.KubevirtMachine) (fields, error) {
	if err := CheckTemplate(machine.Spec.VirtualMachineTemplate.Raw); err != nil {
		return nil, err
	}

	var out fields
	if err := json.Unmarshal(machine.Spec.VirtualMachineTemplate.Raw, &out); err != nil || out == nil {
		return nil, errors.New("parse virtualMachineTemplate: it is not an object with the spec of a VirtualMachine")
	}

	return out, nil
}

// findItem returns the entry of a list with a name, and nil if there is none.
func findItem(object fields, name string, path ...string) fields {
	for _, entry := range listItems(object, path...) {
		if entry["name"] == name {
			return entry
		}
	}

	return nil
}

// listItems returns the entries of a list without copying them. Changing an entry changes the object.
func listItems(object fields, path ...string) []fields {
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

// appendItem adds an entry to the end of a list.
func appendItem(object, entry fields, path ...string) error {
	value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	entries, _ := value.(list)

	if err := unstructured.SetNestedSlice(object, append(entries[:len(entries):len(entries)], entry), path...); err != nil {
		return fmt.Errorf("add to %s: %w", path[len(path)-1], err)
	}

	return nil
}

// MACAddress returns the MAC address of the machine's interface with static addresses. It is the MAC
// address in the template, or one derived from the machine's UID, which does not change with a stop or a
// migration.
func MACAddress(machine *v1alpha1.KubevirtMachine) (string, error) {
	vm, err := parseTemplate(machine)
	if err != nil {
		return "", err
	}

	nic := findItem(vm, machine.Spec.BootstrapNetworkConfig.NetworkName, append(podDevicesPath, "interfaces")...)
	if nic == nil {
		return "", fmt.Errorf(
			"find interface %q: virtualMachineTemplate has no interface with this name in spec.template.spec.domain.devices.interfaces",
			machine.Spec.BootstrapNetworkConfig.NetworkName)
	}

	if mac, ok := nic["macAddress"].(string); ok && mac != "" {
		return mac, nil
	}

	sum := sha256.Sum256([]byte(machine.UID))

	// 02 means that the address is locally administered (IEEE 802, 8.4).
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String(), nil
}

// NewVirtualMachine returns the VirtualMachine of a machine. With static addresses, secret is the name of
// the Secret with the machine's network data, and format is their format.
func NewVirtualMachine(
	machine *v1alpha1.KubevirtMachine, secret string, format netdata.Format,
) (*unstructured.Unstructured, error) {
	content, err := parseTemplate(machine)
	if err != nil {
		return nil, err
	}

	vm := &unstructured.Unstructured{Object: content}
	labels, annotations := vm.GetLabels(), vm.GetAnnotations()
	delete(content, "metadata") // the template must not set a name, owner or finalizer
	vm.SetGroupVersionKind(VirtualMachineKind())
	vm.SetNamespace(machine.Namespace)
	vm.SetName(machine.Name)
	vm.SetLabels(addLabels(machine, labels))
	vm.SetAnnotations(annotations)
	vm.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(machine, v1alpha1.GroupVersion.WithKind("KubevirtMachine")),
	})

	instance, _, _ := unstructured.NestedStringMap(content, "spec", "template", "metadata", "labels")
	err = unstructured.SetNestedStringMap(content, addLabels(machine, instance), "spec", "template", "metadata", "labels")
	if err != nil {
		return nil, fmt.Errorf("label the instance: %w", err)
	}

	if err := renameDataVolumes(content, machine.Name); err != nil {
		return nil, err
	}

	if err := renameUserDataSecrets(content, machine.Name); err != nil {
		return nil, err
	}

	if machine.Spec.BootstrapNetworkConfig == nil {
		return vm, nil
	}

	mac, err := MACAddress(machine)
	if err != nil {
		return nil, err
	}

	findItem(content, machine.Spec.BootstrapNetworkConfig.NetworkName, append(podDevicesPath, "interfaces")...)["macAddress"] = mac
	RecordAddresses(vm, machine)

	return vm, attachNetworkData(content, secret, format)
}

// addLabels adds the labels of the machine, its node pool and its cluster to labels, and returns the result.
func addLabels(machine *v1alpha1.KubevirtMachine, labels map[string]string) map[string]string {
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

// renameDataVolumes adds the machine's name to the names of its data volumes, because the names in the
// template are the same for all machines.
func renameDataVolumes(vm fields, machine string) error {
	renamed := map[string]string{}

	for _, volume := range listItems(vm, "spec", "dataVolumeTemplates") {
		name, _, _ := unstructured.NestedString(volume, "metadata", "name")
		if name == "" {
			return errors.New("parse virtualMachineTemplate: an entry of spec.dataVolumeTemplates has no metadata.name")
		}

		renamed[name] = machine + "-" + name
		if err := unstructured.SetNestedField(volume, renamed[name], "metadata", "name"); err != nil {
			return fmt.Errorf("rename data volume %s: %w", name, err)
		}
	}

	for _, volume := range listItems(vm, podVolumesPath...) {
		name, _, _ := unstructured.NestedString(volume, "dataVolume", "name")
		if newName, found := renamed[name]; found {
			volume["dataVolume"] = fields{"name": newName}
		}
	}

	return nil
}

// renameUserDataSecrets replaces machinePlaceholder in the name of the Secret with user data. Only a
// template with one Secret for each machine has the placeholder.
func renameUserDataSecrets(vm fields, machine string) error {
	for _, volume := range listItems(vm, podVolumesPath...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			name, _, _ := unstructured.NestedString(volume, source, "secretRef", "name")
			if !strings.Contains(name, machinePlaceholder) {
				continue
			}

			newName := strings.ReplaceAll(name, machinePlaceholder, machine)
			if len(newName) > maxSecretName {
				return fmt.Errorf("name the Secret with user data: %s has more than %d characters: shorten userDataSecretRef.name",
					newName, maxSecretName)
			}

			if err := unstructured.SetNestedField(volume, newName, source, "secretRef", "name"); err != nil {
				return fmt.Errorf("name the Secret with user data: %w", err)
			}
		}
	}

	return nil
}

// attachNetworkData adds the Secret with network data to the existing cloud-init drive, or to a new one.
func attachNetworkData(vm fields, secret string, format netdata.Format) error {
	source, other := driveConfigDrive, driveNoCloud
	if format == netdata.FormatV2 {
		source, other = other, source
	}

	for _, volume := range listItems(vm, podVolumesPath...) {
		if _, found := volume[other]; found {
			return fmt.Errorf(
				"attach network data: volume %q of virtualMachineTemplate is %s, but the network data need %s: use one format for both",
				volume["name"], other, source)
		}

		if drive, found := volume[source].(fields); found {
			drive["networkDataSecretRef"] = fields{"name": secret}

			return nil
		}
	}

	disk := fields{"name": cloudInitDisk, "disk": fields{"bus": "virtio"}}
	if err := appendItem(vm, disk, append(podDevicesPath, "disks")...); err != nil {
		return err
	}

	return appendItem(vm, fields{
		"name": cloudInitDisk, source: fields{"networkDataSecretRef": fields{"name": secret}},
	}, podVolumesPath...)
}

// NetworkDataSecret returns the name of the Secret with a VirtualMachine's network data. It is empty if the
// VirtualMachine has no network data.
func NetworkDataSecret(vm *unstructured.Unstructured) string {
	for _, volume := range listItems(vm.Object, podVolumesPath...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			if name, found, _ := unstructured.NestedString(volume, source, "networkDataSecretRef", "name"); found {
				return name
			}
		}
	}

	return ""
}

// SetNetworkDataSecret changes the Secret from which a VirtualMachine reads its network data at its next
// start.
func SetNetworkDataSecret(vm *unstructured.Unstructured, secret string) {
	for _, volume := range listItems(vm.Object, podVolumesPath...) {
		for _, source := range []string{driveConfigDrive, driveNoCloud} {
			if drive, found := volume[source].(fields); found {
				drive["networkDataSecretRef"] = fields{"name": secret}

				return
			}
		}
	}
}
