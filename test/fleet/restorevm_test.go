// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// restoreVM creates a stopped VM with a description, as the restore of a hypervisor's backup does.
func restoreVM(f *fleet.Fleet, id int, name, description string) {
	f.T.Helper()

	postPVE(f, "/nodes/pve1/qemu", loginPVE(f), url.Values{
		"vmid": {strconv.Itoa(id)}, "name": {name}, "description": {description}, "memory": {"512"},
		"pool": {pve.DefaultPool},
	})
	f.Eventually(fmt.Sprintf("VM %d being restored", id), func() (bool, string) {
		return slices.Contains(listVMIDs(f), id), f.Describe()
	})
}

// loginPVE returns the headers of requests of the hypervisor's administrator.
func loginPVE(f *fleet.Fleet) http.Header {
	f.T.Helper()

	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	login := url.Values{"username": {pve.RootUser}, "password": {pve.DefaultPassword}}

	var session struct {
		Data struct{ Ticket, CSRFPreventionToken string } `json:"data"`
	}

	body := postPVE(f, "/access/ticket", header, login)
	if err := json.Unmarshal(body, &session); err != nil {
		f.T.Fatal(err)
	}

	header.Set("Cookie", "PVEAuthCookie="+session.Data.Ticket)
	header.Set("Csrfpreventiontoken", session.Data.CSRFPreventionToken)

	return header
}

// postPVE sends a request to the hypervisor, and returns the response.
func postPVE(f *fleet.Fleet, path string, header http.Header, form url.Values) []byte {
	f.T.Helper()

	request, err := http.NewRequestWithContext(f.T.Context(), http.MethodPost, f.PVE.URL()+"/api2/json"+path,
		strings.NewReader(form.Encode()))
	if err != nil {
		f.T.Fatal(err)
	}

	request.Header = header.Clone()

	response, err := f.PVE.HTTPClient().Do(request)
	if err != nil {
		f.T.Fatal(err)
	}
	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		f.T.Fatalf("POST %s: %s, %v", path, response.Status, err)
	}

	return body
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
