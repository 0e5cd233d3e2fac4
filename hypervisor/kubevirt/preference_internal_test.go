// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func TestParsePreference(t *testing.T) {
	t.Parallel()

	for preference, want := range map[string]string{
		"": "", "windows.11": hypervisor.OSWindows, "windows.2k22.virtio": hypervisor.OSWindows,
		"fedora": hypervisor.OSLinux, "ubuntu": hypervisor.OSLinux, "linux.efi": hypervisor.OSLinux, "alpine": hypervisor.OSLinux,
	} {
		if got := parsePreference(map[string]string{labelPreference: preference}); got != want {
			t.Errorf("%q: %q, want %q", preference, got, want)
		}
	}

	if got := parsePreference(nil); got != "" {
		t.Errorf("without labels: %q", got)
	}
}

func TestNestedVirtualization(t *testing.T) {
	t.Parallel()

	for nested, want := range map[bool]string{false: "", true: "host-passthrough"} {
		if got := buildCPU(hypervisor.Shape{CPU: 3, Nested: nested}); got.Model != want || got.Cores != 3 {
			t.Errorf("nested %t: %+v, want the model %q", nested, got, want)
		}
	}
}
