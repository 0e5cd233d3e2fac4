// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"cmp"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Types of domains.
const (
	typeKVM  = "kvm"
	typeQEMU = "qemu"
)

// facts are what a host's libvirtd says about the host and itself. They do not change while it runs.
type facts struct {
	// version of libvirt.
	version string
	arch    string
	// domainType is the best type of domain that the host is capable of.
	domainType string
	total      hypervisor.Resources
}

// readFacts reads the facts of a new session.
func (h *host) readFacts(s *session) (facts, error) {
	number, err := s.rpc.ConnectGetLibVersion()
	if err != nil {
		return facts{}, fmt.Errorf("read the version of libvirt: %w", err)
	}

	_, memory, cpus, _, _, _, _, _, err := s.rpc.NodeGetInfo() //nolint:dogsled // the library's signature
	if err != nil {
		return facts{}, fmt.Errorf("read the size of the host: %w", err)
	}

	text, err := s.rpc.ConnectGetCapabilities()
	if err != nil {
		return facts{}, fmt.Errorf("read the capabilities of the host: %w", err)
	}

	var capabilities libvirtxml.Caps
	if err := capabilities.Unmarshal(text); err != nil || capabilities.Host.CPU == nil {
		return facts{}, hypervisor.Errorf(hypervisor.Rejected, "CapabilitiesInvalid",
			"read the capabilities of host %s: libvirtd does not say which CPU the host has", h.config.Name)
	}

	const million, thousand = 1000000, 1000

	out := facts{
		version: fmt.Sprintf("%d.%d.%d", number/million, number/thousand%thousand, number%thousand),
		arch:    capabilities.Host.CPU.Arch,
		total:   hypervisor.Resources{CPU: int64(cpus), Memory: int64(memory) * kibibyte}, //nolint:gosec // the size of a host
	}

	out.domainType, err = h.chooseDomainType(capabilities, out.arch)

	return out, err
}

// chooseDomainType returns the type that the cluster names, or kvm, or qemu. The host must be capable of it.
func (h *host) chooseDomainType(capabilities libvirtxml.Caps, arch string) (string, error) {
	has := map[string]bool{}

	for _, guest := range capabilities.Guests {
		if guest.Arch.Name != arch {
			continue
		}

		for _, d := range guest.Arch.Domains {
			has[d.Type] = true
		}
	}

	wanted := h.provider.config.DomainType
	if wanted == "" && has[typeKVM] {
		wanted = typeKVM
	}

	wanted = cmp.Or(wanted, typeQEMU)
	if !has[wanted] {
		return "", hypervisor.Errorf(hypervisor.Rejected, "DomainTypeUnavailable",
			"connect to host %s: it cannot run domains of type %s with architecture %s: install QEMU, enable the "+
				"virtualization of its CPU, or correct spec.libvirt.domainType", h.config.Name, wanted, arch)
	}

	return wanted, nil
}
