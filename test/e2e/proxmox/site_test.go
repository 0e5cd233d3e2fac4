// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"flag"
	"os"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// atOnce is how many machines' lives go on at once: they wait for Proxmox VE more than they
// compute.
const atOnce = "5"

const mib = 1 << 20

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}

	os.Exit(realpve.Run(m))
}

// long is for tests that CI leaves to `make e2e-proxmox`.
func long(t *testing.T) {
	t.Helper()

	if testing.Short() {
		t.Skip("make e2e-proxmox runs it")
	}
}

// byGrants runs the test with each of the guide's two kinds of grants, one after the other:
// there is one account.
func byGrants(t *testing.T, test func(*testing.T, *realpve.Site, realpve.Account)) {
	t.Helper()

	site := realpve.Get(t)

	for _, kind := range []struct {
		name   string
		grants realpve.Grants
	}{{"grants by pool", realpve.ByPool}, {"grants on vms", realpve.ByVMs}} {
		t.Run(kind.name, func(t *testing.T) {
			if kind.grants != realpve.ByPool {
				long(t)
			}

			test(t, site, site.Account(t, kind.grants))
		})
	}
}

func shape() hypervisor.Shape {
	return hypervisor.Shape{CPU: 1, Memory: 64 * mib, Linked: true, CloudInitSource: hypervisor.SourceNoCloud}
}

// The conformance cases of every provider, with the grants that the guide recommends: what
// is different with the others is seen in lives and restarts. Crashes and Property step in
// at calls by the hundred; restarts_test.go has the most telling ones.
func TestOneNode(t *testing.T) {
	long(t)

	site := realpve.Get(t)
	account := site.Account(t, realpve.ByPool)

	conformance.Run(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		part := site.Part(t, account)
		harness := conformance.Harness{
			Connect: part.Connect, RealTime: true,
			Template: hypervisor.TemplateRef{ID: site.Template}, Shape: shape(), IDMin: part.First,
			TPMsHidden: !site.Boxed(),
			Inspect:    part.Inspect, PowerOff: part.PowerOff, Occupy: part.Occupy, Vanish: part.Vanish,
		}

		if site.TPMTemplate != 0 {
			harness.TPMTemplate = hypervisor.TemplateRef{ID: site.TPMTemplate}
		}

		return harness
	})
}
