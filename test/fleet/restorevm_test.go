// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// restoreVM creates a stopped VM with a description, as the restore of a hypervisor's backup does.
func restoreVM(f *fleet.Fleet, id int, name, description string) {
	f.T.Helper()

	pvetest.LogIn(f.T, f.PVE).Do(http.MethodPost, "/nodes/pve1/qemu", url.Values{
		"vmid": {strconv.Itoa(id)}, "name": {name}, "description": {description}, "memory": {"512"},
		"pool": {pve.DefaultPool},
	})
	f.Eventually(fmt.Sprintf("VM %d being restored", id), func() (bool, string) {
		return slices.Contains(listVMIDs(f), id), f.Describe()
	})
}

// findVM returns the VM with the ID.
func findVM(f *fleet.Fleet, id int) (pve.VMState, bool) {
	vms := f.PVE.Snapshot().VMs
	index := slices.IndexFunc(vms, func(vm pve.VMState) bool { return vm.VMID == id })

	if index < 0 {
		return pve.VMState{}, false
	}

	return vms[index], true
}
