// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"net"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	virtv1 "kubevirt.io/api/core/v1"
)

// Limits of KubeVirt's webhooks (vmi-create-admitter.go).
const (
	maxInline      = 2048
	minMemory      = 1_000_000
	templateSpec   = "spec.template.spec."
	memoryRequest  = templateSpec + "domain.resources.requests.memory"
	nameOfNetwork  = `^[A-Za-z0-9-_]+$`
	notFoundFormat = "%s '%s' not found."
)

// Validate is the part of KubeVirt's admission webhook for VirtualMachines that machines
// of ours can offend: virt-api's vms-admitter.go, vmi-create-admitter.go and
// pkg/network/admitter, in KubeVirt's words. Nil means that it is admitted.
func Validate(vm *virtv1.VirtualMachine) []string {
	if vm.Spec.Template == nil {
		return []string{"missing virtual machine template."}
	}

	spec := &vm.Spec.Template.Spec

	var wrong []string

	wrong = append(wrong, validateStrategy(vm)...)
	wrong = append(wrong, validateMemory(spec)...)
	wrong = append(wrong, validateHostname(spec)...)
	wrong = append(wrong, validateDisks(spec)...)
	wrong = append(wrong, validateVolumes(spec)...)
	wrong = append(wrong, validateNetworks(spec)...)

	return append(wrong, validateInterfaces(spec)...)
}

func validateStrategy(vm *virtv1.VirtualMachine) []string {
	switch {
	case vm.Spec.Running != nil && vm.Spec.RunStrategy != nil:
		return []string{"Running and RunStrategy are mutually exclusive. " +
			"Note that Running is deprecated, please use RunStrategy instead"}
	case vm.Spec.Running == nil && vm.Spec.RunStrategy == nil:
		return []string{"RunStrategy must be specified"}
	case vm.Spec.RunStrategy == nil:
		return nil
	}

	switch s := *vm.Spec.RunStrategy; s {
	case virtv1.RunStrategyHalted, virtv1.RunStrategyManual, virtv1.RunStrategyAlways,
		virtv1.RunStrategyRerunOnFailure, virtv1.RunStrategyOnce:
		return nil
	default:
		return []string{fmt.Sprintf("Invalid RunStrategy (%s)", s)}
	}
}

func validateMemory(spec *virtv1.VirtualMachineInstanceSpec) []string {
	request, requested := spec.Domain.Resources.Requests[corev1.ResourceMemory]

	switch {
	case requested && request.Sign() <= 0:
		return []string{fmt.Sprintf("%s '%s': must be greater than or equal to 0.", memoryRequest, request.String())}
	case requested && request.Value() < minMemory:
		return []string{fmt.Sprintf("%s '%s': must be greater than or equal to 1M.", memoryRequest, request.String())}
	default:
		return nil
	}
}

// ValidateInstance is what KubeVirt finds only when the machine is started, in the webhook for
// VirtualMachineInstances: ValidateVirtualMachineInstanceMandatoryFields.
func ValidateInstance(vm *virtv1.VirtualMachine) []string {
	spec := &vm.Spec.Template.Spec
	if spec.Domain.Resources.Requests.Memory().Sign() != 0 {
		return nil
	}

	if memory := spec.Domain.Memory; memory != nil && (memory.Guest != nil || memory.Hugepages != nil) {
		return nil
	}

	return []string{"no memory requested, at least one of 'spec.domain.memory.guest', " +
		"'spec.domain.memory.hugepages.pageSize' or 'spec.domain.resources.requests.memory' must be set"}
}

func validateHostname(spec *virtv1.VirtualMachineInstanceSpec) []string {
	if spec.Hostname == "" {
		return nil
	}

	if problems := validation.IsDNS1123Label(spec.Hostname); len(problems) > 0 {
		return []string{fmt.Sprintf("%shostname does not conform to the kubernetes DNS_LABEL rules : %s", templateSpec, problems[0])}
	}

	return nil
}

func validateDisks(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var wrong []string

	volumes, disks, orders := map[string]bool{}, map[string]bool{}, map[uint]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}

	for i, d := range spec.Domain.Devices.Disks {
		at := fmt.Sprintf("%sdomain.devices.disks[%d]", templateSpec, i)

		if !volumes[d.Name] {
			wrong = append(wrong, fmt.Sprintf(notFoundFormat, at+".Name", d.Name))
		}

		if disks[d.Name] {
			wrong = append(wrong, at+" and another disk must not have the same Name.")
		}

		disks[d.Name] = true

		if d.BootOrder == nil {
			continue
		}

		switch order := *d.BootOrder; {
		case order == 0:
			wrong = append(wrong, at+" must have a boot order > 0, if supplied")
		case orders[order]:
			wrong = append(wrong, "Boot order for "+at+".bootOrder already set for a different device.")
		default:
			orders[order] = true
		}
	}

	return wrong
}

func validateVolumes(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var wrong []string

	names, cloudInits := map[string]bool{}, 0

	for i, v := range spec.Volumes {
		at := fmt.Sprintf("%svolumes[%d]", templateSpec, i)

		if names[v.Name] {
			wrong = append(wrong, at+" and another volume must not have the same Name.")
		}

		names[v.Name] = true

		if sources(&v.VolumeSource) != 1 {
			wrong = append(wrong, at+" must have exactly one source type set")
		}

		if s := v.CloudInitNoCloud; s != nil {
			cloudInits++

			wrong = append(wrong, validateCloudInit(at+".cloudInitNoCloud",
				cloudInit{s.UserDataSecretRef, s.UserDataBase64, s.UserData, s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData})...)
		}

		if s := v.CloudInitConfigDrive; s != nil {
			cloudInits++

			wrong = append(wrong, validateCloudInit(at+".cloudInitConfigDrive",
				cloudInit{s.UserDataSecretRef, s.UserDataBase64, s.UserData, s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData})...)
		}

		if v.Secret != nil && v.Secret.SecretName == "" {
			wrong = append(wrong, at+".secret.secretName is a required field")
		}
	}

	if cloudInits > 1 {
		wrong = append(wrong, templateSpec+"volumes must have max one cloudInit volume set")
	}

	return wrong
}

// sources counts the kinds of a volume.
func sources(s *virtv1.VolumeSource) int {
	count := 0

	for _, set := range []bool{
		s.HostDisk != nil, s.PersistentVolumeClaim != nil, s.CloudInitNoCloud != nil, s.CloudInitConfigDrive != nil,
		s.Sysprep != nil, s.ContainerDisk != nil, s.Ephemeral != nil, s.EmptyDisk != nil, s.DataVolume != nil,
		s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil, s.ServiceAccount != nil, s.DownwardMetrics != nil,
		s.MemoryDump != nil,
	} {
		if set {
			count++
		}
	}

	return count
}

func validateCloudInit(at string, s cloudInit) []string {
	var wrong []string

	user := count(s.userRef != nil, s.userBase64 != "", s.userText != "")
	network := count(s.networkRef != nil, s.networkBase64 != "", s.networkText != "")

	switch {
	case user > 1:
		wrong = append(wrong, at+" must have only one userdatasource set.")
	case network > 1:
		wrong = append(wrong, at+" must have only one networkdata source set.")
	case user+network == 0:
		wrong = append(wrong, at+" must have at least one userdatasource or one networkdatasource set.")
	}

	if len(s.userBase64) > maxInline || len(s.userText) > maxInline {
		wrong = append(wrong,
			fmt.Sprintf("%s userdata exceeds %d byte limit. Should use UserDataSecretRef for larger data.", at, maxInline))
	}

	if len(s.networkBase64) > maxInline || len(s.networkText) > maxInline {
		wrong = append(wrong,
			fmt.Sprintf("%s networkdata exceeds %d byte limit. Should use NetworkDataSecretRef for larger data.", at, maxInline))
	}

	return wrong
}

func count(set ...bool) int {
	n := 0

	for _, s := range set {
		if s {
			n++
		}
	}

	return n
}

func validateNetworks(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var wrong []string

	interfaces, seen, pods := map[string]bool{}, map[string]bool{}, 0
	for _, iface := range spec.Domain.Devices.Interfaces {
		interfaces[iface.Name] = true
	}

	for i, n := range spec.Networks {
		at := fmt.Sprintf("%snetworks[%d]", templateSpec, i)

		if !interfaces[n.Name] {
			wrong = append(wrong, fmt.Sprintf(notFoundFormat, at+".name", n.Name))
		}

		if seen[n.Name] {
			wrong = append(wrong, fmt.Sprintf("Network with name %q already exists, every network must have a unique name", n.Name))
		}

		seen[n.Name] = true

		switch count(n.Pod != nil, n.Multus != nil, n.ResourceClaim != nil) {
		case 0:
			wrong = append(wrong, "should have a network type")
		case 1:
		default:
			wrong = append(wrong, "should have only one network type")
		}

		if n.Multus != nil && n.Multus.NetworkName == "" {
			wrong = append(wrong, "CNI delegating plugin must have a networkName")
		}

		if n.Pod != nil {
			pods++
		}
	}

	if pods > 1 {
		wrong = append(wrong, "more than one interface is connected to a pod network in "+templateSpec+"interfaces")
	}

	return wrong
}

func validateInterfaces(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var wrong []string

	networks, seen, named := map[string]virtv1.Network{}, map[string]bool{}, regexp.MustCompile(nameOfNetwork)
	for _, n := range spec.Networks {
		networks[n.Name] = n
	}

	for i, iface := range spec.Domain.Devices.Interfaces {
		at := fmt.Sprintf("%sdomain.devices.interfaces[%d].name", templateSpec, i)

		network, ok := networks[iface.Name]
		if !ok {
			wrong = append(wrong, fmt.Sprintf(notFoundFormat, at, iface.Name))
		}

		if seen[iface.Name] {
			wrong = append(wrong, "Only one interface can be connected to one specific network")
		}

		seen[iface.Name] = true

		if !named.MatchString(iface.Name) {
			wrong = append(wrong,
				"Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)")
		}

		if iface.MacAddress != "" {
			if mac, err := net.ParseMAC(iface.MacAddress); err != nil || len(mac) != 6 {
				wrong = append(wrong, fmt.Sprintf("interface %s has malformed MAC address (%s).", at, iface.MacAddress))
			}
		}

		if bindings(&iface) > 1 {
			wrong = append(wrong, fmt.Sprintf("logical %s interface must have exactly one binding method or binding plugin", iface.Name))
		}

		if iface.Masquerade != nil && ok && network.Pod == nil {
			wrong = append(wrong, "Masquerade interface only implemented with pod network")
		}
	}

	return wrong
}

func bindings(iface *virtv1.Interface) int {
	return count(iface.Bridge != nil, iface.Masquerade != nil, iface.SRIOV != nil, iface.Binding != nil,
		iface.PasstBinding != nil)
}
