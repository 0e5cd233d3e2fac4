// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// The metadata are those that virt-install writes.
func TestParseOSInfo(t *testing.T) {
	t.Parallel()

	for id, want := range map[string]string{
		"http://microsoft.com/win/11": hypervisor.OSWindows, "http://microsoft.com/win/2k22": hypervisor.OSWindows,
		"http://debian.org/debian/13": hypervisor.OSLinux, "http://libosinfo.org/linux/2022": hypervisor.OSLinux,
		"http://freebsd.org/freebsd/14.0": "", "nothing": "",
	} {
		var domain libvirtxml.Domain

		text := `<domain type="kvm"><name>t</name><metadata><libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0">` +
			`<libosinfo:os id="` + id + `"/></libosinfo:libosinfo></metadata></domain>`
		if err := domain.Unmarshal(text); err != nil {
			t.Fatal(err)
		}

		if got := parseOSInfo(&domain); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}

	if got := parseOSInfo(&libvirtxml.Domain{}); got != "" {
		t.Errorf("without metadata: %q", got)
	}
}
