// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// getTPMSeed returns the value that identifies the seeds of a VM's TPM.
func (a *rawClient) getTPMSeed(id int) string {
	a.t.Helper()
	vm, ok := a.s.Snapshot().VM(id)
	if !ok {
		a.t.Fatalf("no VM %d", id)
	}
	return vm.TPM
}

// countVolumes returns the number of a VM's volumes.
func (a *rawClient) countVolumes(id int) int {
	n := 0
	for _, v := range a.s.Snapshot().Volumes {
		if v.VMID == id {
			n++
		}
	}
	return n
}

// TestTPM checks that the seeds of a TPM are created at the first start, and that a clone has the
// seeds of its template.
func TestTPM(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Templates[0].TPM = true })
	template := a.getTPMSeed(9001)
	if template == "" {
		t.Fatal("the template has no TPM")
	}

	a.clone("1000", nil)
	a.clone("1001", nil)
	if one, two := a.getTPMSeed(1000), a.getTPMSeed(1001); one != template || two != template {
		t.Errorf("clones have %q and %q, their template has %q", one, two, template)
	}

	// A replaced TPM remains as an unused volume of the VM.
	a.mustDo("PUT", confPath, formData{"tpmstate0": "local-lvm:1,version=v2.0"})
	conf := a.getConfig("1000")
	if unused, now := fmt.Sprint(conf["unused0"]), fmt.Sprint(conf["tpmstate0"]); !strings.Contains(unused, "vm-1000-disk-") ||
		strings.HasPrefix(now, unused) || !strings.HasSuffix(now, ",size=4M,version=v2.0") || a.getTPMSeed(1000) != "" {
		t.Errorf("tpmstate0 %q, unused0 %q, seed %q", now, unused, a.getTPMSeed(1000))
	}
	before := a.countVolumes(1000)
	a.mustDo("PUT", confPath, formData{"delete": "unused0"})
	if a.countVolumes(1000) != before-1 {
		t.Errorf("%d volumes, before %d", a.countVolumes(1000), before)
	}

	// With force, the volume is deleted.
	before = a.countVolumes(1001)
	a.mustDo("PUT", "/nodes/pve1/qemu/1001/config", formData{"delete": "tpmstate0", "force": "1"})
	if conf := a.getConfig("1001"); conf["unused0"] != nil || conf["tpmstate0"] != nil || a.countVolumes(1001) != before-1 {
		t.Errorf("config %v, %d volumes, before %d", conf, a.countVolumes(1001), before)
	}
	a.mustDo("PUT", "/nodes/pve1/qemu/1001/config", formData{"tpmstate0": "local-lvm:4,version=v2.0"})

	for _, id := range []string{"1000", "1001"} {
		a.mustRunTask("POST", "/nodes/pve1/qemu/"+id+"/status/start", nil)
	}
	if one, two := a.getTPMSeed(1000), a.getTPMSeed(1001); one == "" || one == two || one == template || two == template {
		t.Errorf("TPMs %q, %q, the template's %q", one, two, template)
	}

	for _, tc := range []struct {
		params formData
		want   string
	}{
		{formData{"tpmstate0": "local-lvm:4,version=v3.0"}, "enumeration 'v1.2, v2.0'"},
		{formData{"tpmstate0": "local-lvm:4,version=v2.0,cache=none"}, "cache: property is not defined"},
		{formData{"tpmstate0": "local-lvm:4,version=v2.0,format=qcow2"}, "format: property is not defined"},
		{formData{"tpmstate1": "local-lvm:4"}, "property is not defined in schema"},
	} {
		got := a.do("PUT", confPath, tc.params)
		if text := got.reason + fmt.Sprint(got.body["errors"]); got.status != 400 || !strings.Contains(text, tc.want) {
			t.Errorf("%v: %d %s", tc.params, got.status, text)
		}
	}
}
