// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"errors"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// newCapabilities returns the capabilities of a host with an x86 CPU, as libvirtd reports them. guests has the types of domains
// by architecture.
func newCapabilities(t *testing.T, guests map[string][]string) libvirtxml.Caps {
	t.Helper()

	var text strings.Builder

	text.WriteString("<capabilities><host><cpu><arch>x86_64</arch></cpu></host>")

	for arch, types := range guests {
		text.WriteString("<guest><os_type>hvm</os_type><arch name='" + arch + "'><wordsize>64</wordsize>")

		for _, name := range types {
			text.WriteString("<domain type='" + name + "'/>")
		}

		text.WriteString("</arch></guest>")
	}

	text.WriteString("</capabilities>")

	var out libvirtxml.Caps
	if err := out.Unmarshal(text.String()); err != nil {
		t.Fatal(err)
	}

	return out
}

// Machines use KVM where the host has it, and the type that the cluster names. A host that does not have this type is refused.
func TestDomainTypeOfHost(t *testing.T) {
	t.Parallel()

	const refused = ""

	both := map[string][]string{archX86: {typeQEMU, typeKVM}}
	emulation := map[string][]string{archX86: {typeQEMU}}
	foreign := map[string][]string{archX86: {typeQEMU}, archARM: {typeQEMU, typeKVM}}
	none := map[string][]string{archARM: {typeQEMU, typeKVM}}

	for name, c := range map[string]struct {
		guests       map[string][]string
		wanted, want string
	}{
		"KVM is chosen":                          {both, "", typeKVM},
		"KVM is named":                           {both, typeKVM, typeKVM},
		"emulation is named":                     {both, typeQEMU, typeQEMU},
		"only emulation":                         {emulation, "", typeQEMU},
		"only emulation, and it is named":        {emulation, typeQEMU, typeQEMU},
		"only emulation, and KVM is named":       {emulation, typeKVM, refused},
		"KVM for another architecture":           {foreign, "", typeQEMU},
		"KVM is named for another architecture":  {foreign, typeKVM, refused},
		"no emulation for the host's CPU":        {none, "", refused},
		"no emulation, and emulation is named":   {none, typeQEMU, refused},
		"no emulation, and the host has no QEMU": {nil, "", refused},
	} {
		capabilities := newCapabilities(t, c.guests)
		h := &host{
			config: hypervisor.Host{Name: "host-1"}, provider: &Provider{config: hypervisor.Config{DomainType: c.wanted}},
		}

		got, err := h.chooseDomainType(capabilities, capabilities.Host.CPU.Arch)
		if got != c.want {
			t.Errorf("%s: want type %q, got %q (%v)", name, c.want, got, err)
		}

		e, isTyped := errors.AsType[*hypervisor.Error](err)
		if isRefused := isTyped && e.Reason == "DomainTypeUnavailable" && e.Kind == hypervisor.Rejected; isRefused != (c.want == refused) {
			t.Errorf("%s: want a refusal: %t, got %v", name, c.want == refused, err)
		}

		if isTyped && !strings.Contains(e.Message, "host host-1") {
			t.Errorf("%s: the message does not name the host: %v", name, err)
		}
	}
}
