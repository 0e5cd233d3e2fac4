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
	maxInline            = 2048
	minMemory            = 1_000_000
	templateSpec         = "spec.template.spec."
	memoryRequest        = templateSpec + "domain.resources.requests.memory"
	interfaceNamePattern = `^[A-Za-z0-9-_]+$`
	notFoundFormat       = "%s '%s' not found."
)

// Validate returns the causes for which KubeVirt's admission webhook rejects a VirtualMachine, nil if it
// admits it. It implements only the rules that HyperFleet's machines can violate, with KubeVirt's own
// messages (virt-api's vms-admitter.go, vmi-create-admitter.go and pkg/network/admitter).
func Validate(vm *virtv1.VirtualMachine) []string {
	if vm.Spec.Template == nil {
		return []string{"missing virtual machine template."}
	}

	spec := &vm.Spec.Template.Spec

	var violations []string

	violations = append(violations, validateStrategy(vm)...)
	violations = append(violations, validateMemory(spec)...)
	violations = append(violations, validateHostname(spec)...)
	violations = append(violations, validateDisks(spec)...)
	violations = append(violations, validateVolumes(spec)...)
	violations = append(violations, validateNetworks(spec)...)

	return append(violations, validateInterfaces(spec)...)
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
	request, isRequested := spec.Domain.Resources.Requests[corev1.ResourceMemory]

	switch {
	case isRequested && request.Sign() <= 0:
		return []string{fmt.Sprintf("%s '%s': must be greater than or equal to 0.", memoryRequest, request.String())}
	case isRequested && request.Value() < minMemory:
		return []string{fmt.Sprintf("%s '%s': must be greater than or equal to 1M.", memoryRequest, request.String())}
	default:
		return nil
	}
}

// ValidateInstance returns the causes for which KubeVirt's webhook for VirtualMachineInstances rejects a
// machine when it starts (ValidateVirtualMachineInstanceMandatoryFields).
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
	var violations []string

	volumes, disks, orders := map[string]bool{}, map[string]bool{}, map[uint]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}

	for i, d := range spec.Domain.Devices.Disks {
		path := fmt.Sprintf("%sdomain.devices.disks[%d]", templateSpec, i)

		if !volumes[d.Name] {
			violations = append(violations, fmt.Sprintf(notFoundFormat, path+".Name", d.Name))
		}

		if disks[d.Name] {
			violations = append(violations, path+" and another disk must not have the same Name.")
		}

		disks[d.Name] = true

		if d.BootOrder == nil {
			continue
		}

		switch order := *d.BootOrder; {
		case order == 0:
			violations = append(violations, path+" must have a boot order > 0, if supplied")
		case orders[order]:
			violations = append(violations, "Boot order for "+path+".bootOrder already set for a different device.")
		default:
			orders[order] = true
		}
	}

	return violations
}

func validateVolumes(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var violations []string

	names, cloudInits := map[string]bool{}, 0

	for i, v := range spec.Volumes {
		path := fmt.Sprintf("%svolumes[%d]", templateSpec, i)

		if names[v.Name] {
			violations = append(violations, path+" and another volume must not have the same Name.")
		}

		names[v.Name] = true

		if countSources(&v.VolumeSource) != 1 {
			violations = append(violations, path+" must have exactly one source type set")
		}

		if s := v.CloudInitNoCloud; s != nil {
			cloudInits++

			violations = append(violations, validateCloudInit(path+".cloudInitNoCloud", cloudInitSource{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData, s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})...)
		}

		if s := v.CloudInitConfigDrive; s != nil {
			cloudInits++

			violations = append(violations, validateCloudInit(path+".cloudInitConfigDrive", cloudInitSource{
				s.UserDataSecretRef, s.UserDataBase64, s.UserData, s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData,
			})...)
		}

		if v.Secret != nil && v.Secret.SecretName == "" {
			violations = append(violations, path+".secret.secretName is a required field")
		}
	}

	if cloudInits > 1 {
		violations = append(violations, templateSpec+"volumes must have max one cloudInit volume set")
	}

	return violations
}

// countSources returns how many source types of a volume are set.
func countSources(s *virtv1.VolumeSource) int {
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

func validateCloudInit(path string, s cloudInitSource) []string {
	var violations []string

	user := countTrue(s.userRef != nil, s.userBase64 != "", s.userText != "")
	network := countTrue(s.networkRef != nil, s.networkBase64 != "", s.networkText != "")

	switch {
	case user > 1:
		violations = append(violations, path+" must have only one userdatasource set.")
	case network > 1:
		violations = append(violations, path+" must have only one networkdata source set.")
	case user+network == 0:
		violations = append(violations, path+" must have at least one userdatasource or one networkdatasource set.")
	}

	if len(s.userBase64) > maxInline || len(s.userText) > maxInline {
		violations = append(violations,
			fmt.Sprintf("%s userdata exceeds %d byte limit. Should use UserDataSecretRef for larger data.", path, maxInline))
	}

	if len(s.networkBase64) > maxInline || len(s.networkText) > maxInline {
		violations = append(violations,
			fmt.Sprintf("%s networkdata exceeds %d byte limit. Should use NetworkDataSecretRef for larger data.", path, maxInline))
	}

	return violations
}

func countTrue(set ...bool) int {
	n := 0

	for _, s := range set {
		if s {
			n++
		}
	}

	return n
}

func validateNetworks(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var violations []string

	interfaces, seenNames, pods := map[string]bool{}, map[string]bool{}, 0
	for _, iface := range spec.Domain.Devices.Interfaces {
		interfaces[iface.Name] = true
	}

	for i, n := range spec.Networks {
		path := fmt.Sprintf("%snetworks[%d]", templateSpec, i)

		if !interfaces[n.Name] {
			violations = append(violations, fmt.Sprintf(notFoundFormat, path+".name", n.Name))
		}

		if seenNames[n.Name] {
			violations = append(violations,
				fmt.Sprintf("Network with name %q already exists, every network must have a unique name", n.Name))
		}

		seenNames[n.Name] = true

		switch countTrue(n.Pod != nil, n.Multus != nil, n.ResourceClaim != nil) {
		case 0:
			violations = append(violations, "should have a network type")
		case 1:
		default:
			violations = append(violations, "should have only one network type")
		}

		if n.Multus != nil && n.Multus.NetworkName == "" {
			violations = append(violations, "CNI delegating plugin must have a networkName")
		}

		if n.Pod != nil {
			pods++
		}
	}

	if pods > 1 {
		violations = append(violations, "more than one interface is connected to a pod network in "+templateSpec+"interfaces")
	}

	return violations
}

func validateInterfaces(spec *virtv1.VirtualMachineInstanceSpec) []string {
	var violations []string

	networks, seenNames, namePattern := map[string]virtv1.Network{}, map[string]bool{}, regexp.MustCompile(interfaceNamePattern)
	for _, n := range spec.Networks {
		networks[n.Name] = n
	}

	for i, iface := range spec.Domain.Devices.Interfaces {
		path := fmt.Sprintf("%sdomain.devices.interfaces[%d].name", templateSpec, i)

		network, ok := networks[iface.Name]
		if !ok {
			violations = append(violations, fmt.Sprintf(notFoundFormat, path, iface.Name))
		}

		if seenNames[iface.Name] {
			violations = append(violations, "Only one interface can be connected to one specific network")
		}

		seenNames[iface.Name] = true

		if !namePattern.MatchString(iface.Name) {
			violations = append(violations,
				"Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)")
		}

		if iface.MacAddress != "" {
			if mac, err := net.ParseMAC(iface.MacAddress); err != nil || len(mac) != 6 {
				violations = append(violations, fmt.Sprintf("interface %s has malformed MAC address (%s).", path, iface.MacAddress))
			}
		}

		if countBindings(&iface) > 1 {
			violations = append(violations,
				fmt.Sprintf("logical %s interface must have exactly one binding method or binding plugin", iface.Name))
		}

		if iface.Masquerade != nil && ok && network.Pod == nil {
			violations = append(violations, "Masquerade interface only implemented with pod network")
		}
	}

	return violations
}

func countBindings(iface *virtv1.Interface) int {
	return countTrue(iface.Bridge != nil, iface.Masquerade != nil, iface.SRIOV != nil, iface.Binding != nil,
		iface.PasstBinding != nil)
}
