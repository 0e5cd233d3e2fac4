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

// parallelTests is the number of lifecycles that run at the same time. They mostly wait for Proxmox VE.
const parallelTests = "5"

const mib = 1 << 20

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err)
	}

	os.Exit(realpve.Run(m))
}

// skipIfShort skips tests that only `make e2e-proxmox` runs.
func skipIfShort(t *testing.T) {
	t.Helper()

	if testing.Short() {
		t.Skip("make e2e-proxmox runs it")
	}
}

func newShape() hypervisor.Shape {
	return hypervisor.Shape{CPU: 1, Memory: 64 * mib, Linked: true, CloudInitSource: hypervisor.SourceNoCloud}
}

// The conformance cases of every provider. RunCrashes and Property make hundreds of calls. restarts_test.go has
// their most important cases.
func TestConformance(t *testing.T) {
	site := realpve.GetSite(t)

	skipIfShort(t)

	conformance.Run(t, func(t *testing.T) conformance.Harness {
		t.Helper()

		part := site.NewPart(t)

		return conformance.Harness{
			Connect: part.Connect, RealTime: true, TPMsHidden: true,
			Template: hypervisor.TemplateRef{ID: site.Template}, Shape: newShape(), IDMin: part.First,
			Inspect: part.Inspect, PowerOff: part.PowerOff, OccupyID: part.OccupyID, DeleteExternally: part.DeleteExternally,
		}
	})
}
