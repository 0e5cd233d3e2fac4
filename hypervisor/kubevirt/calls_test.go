// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// A machine with an address costs no list of all machines, whose size grows with their number.
func TestMachineWithAddressListsNothing(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})

	var lists atomic.Int32

	spec := newMachineSpec()

	p, err := kubevirt.New(s.config(), hypervisor.Options{
		OperatorUID: operatorUID,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				query := r.URL.Query()
				isList := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/virtualmachines") && query.Get("watch") == ""

				// Lists of the cache have a limit, and those of one claim have its label.
				if isList && query.Get("limit") == "" && !strings.Contains(query.Get("labelSelector"), spec.Owner.UID) {
					lists.Add(1)
				}

				return next.RoundTrip(r)
			})
		},
	}, env.Config)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)

	spec.Network = hypervisor.NetworkOptions{Addresses: []string{"192.0.2.10/24"}, AddressNetwork: "lab"}
	s.advanceTo(p, spec, hypervisor.StateRunning)

	if n := lists.Load(); n > 0 {
		t.Errorf("the machine costs %d lists of all machines", n)
	}
}
