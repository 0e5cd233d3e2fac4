// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// TestCloudInitVariablesAreDocumented checks that every variable of cloud-init templates is on its page.
func TestCloudInitVariablesAreDocumented(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/reference/cloud-init.md")
	if err != nil {
		t.Fatal(err)
	}

	for prefix, kind := range map[string]reflect.Type{
		".": reflect.TypeFor[cloudinit.Vars](), ".RunnerConfig.": reflect.TypeFor[cloudinit.RunnerConfig](),
	} {
		for field := range kind.Fields() {
			if name := prefix + field.Name; name != ".RunnerConfig" && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/reference/cloud-init.md does not have the variable %s", name)
			}
		}
	}
}

// TestNamesOfClaims checks the names in claims that programs of users and the requirements rely on.
func TestNamesOfClaims(t *testing.T) {
	t.Parallel()

	got := []string{
		hfv1.FinalizerVMCleanup, hfv1.ConditionProvisioned, hfv1.ConditionBootstrapped, hfv1.ConditionVMCleanedUp,
		hfv1.ConditionNetworkValidated, step.Ready, string(hfv1.MachineClaimPending), string(hfv1.MachineClaimProvisioning),
		string(hfv1.MachineClaimBootstrapping), string(hfv1.MachineClaimReady), string(hfv1.MachineClaimDraining),
		string(hfv1.MachineClaimTerminating), string(hfv1.MachineClaimFailed),
	}
	want := []string{
		"hyperfleet.io/vm-cleanup", "Provisioned", "Bootstrapped", "VMCleanedUp", "NetworkValidated", "Ready",
		"Pending", "Provisioning", "Bootstrapping", "Ready", "Draining", "Terminating", "Failed",
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
