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

func shape() hypervisor.Shape {
	return hypervisor.Shape{CPU: 1, Memory: 64 * mib, Linked: true, CloudInitSource: hypervisor.SourceNoCloud}
}

// The conformance cases of every provider. Crashes and Property step in at calls by the hundred;
// restarts_test.go has the most telling ones.
func TestConformance(t *testing.T) {
	site := realpve.GetSite(t)

	long(t)

	conformance.Run(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		part := site.NewPart(t)

		return conformance.Harness{
			Connect: part.Connect, RealTime: true, TPMsHidden: true,
			Template: hypervisor.TemplateRef{ID: site.Template}, Shape: shape(), IDMin: part.First,
			Inspect: part.Inspect, PowerOff: part.PowerOff, OccupyID: part.OccupyID, DeleteExternally: part.DeleteExternally,
		}
	})
}
