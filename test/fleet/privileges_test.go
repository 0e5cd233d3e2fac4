// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

var reRole = regexp.MustCompile(`(?m)^ *pveum role add (\w+) --privs "([^"]+)"`)

// readDocumentedRoles returns the privileges of each role in the guide.
func readDocumentedRoles(t *testing.T) map[string][]string {
	t.Helper()

	guide, err := os.ReadFile("../../docs/guides/proxmox-permissions.md")
	if err != nil {
		t.Fatal(err)
	}

	out := map[string][]string{}
	for _, m := range reRole.FindAllStringSubmatch(string(guide), -1) {
		out[m[1]] = strings.Fields(m[2])
	}

	return out
}

// listOptional returns documented privileges that this fleet works without, and why.
func listOptional() map[string]string {
	return map[string]string{
		"HyperFleetVM VM.Config.Cloudinit":           "only the cloud-init source builtin needs it",
		"HyperFleetISO Datastore.AllocateSpace":      "Datastore.AllocateTemplate suffices for uploads",
		"HyperFleetVM VM.GuestAgent.Audit":           "without it the addresses of machines are unknown, which is only a warning",
		"HyperFleetShell VM.Console":                 "only consoles need it",
		"HyperFleetShell VM.GuestAgent.Unrestricted": "only commands in machines need it",
		"HyperFleetDevice Mapping.Use":               "only machines with devices need it",
		"HyperFleetPool Pool.Audit":                  "the operator only names the pool, and does not read it",
	}
}

// TestMissingPrivileges removes one privilege of the guide at a time while a machine runs, and checks that a
// condition names it, that the machine and its claim stay, and that all objects become ready when the privilege is
// back.
func TestMissingPrivileges(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{Guest: runIdleGuest})
	f.Runners.ClusterInterval, f.Runners.TemplateInterval = time.Second, time.Second
	cluster, template, claim := f.NewCluster(), f.NewTemplate(), f.NewClaim("runs")
	// The runner is never online, and on a slow computer the fast clock passes the default.
	claim.Spec.Lifecycle = &v1alpha1.Lifecycle{BootstrapTimeout: &metav1.Duration{Duration: 24 * time.Hour}}
	createAndStart(f, template, claim)
	defer f.Stop()

	eventuallyRunning(f, 1)

	roles := readDocumentedRoles(t)
	if len(roles) < 7 {
		t.Fatalf("the guide has the roles %v, want at least 7", roles)
	}

	for _, role := range slices.Sorted(maps.Keys(roles)) {
		for _, privilege := range roles[role] {
			if listOptional()[role+" "+privilege] != "" {
				continue
			}

			f.PVE.SetPrivilege(role, privilege, false)
			f.Eventually("a condition that names "+privilege+" of "+role, func() (bool, string) {
				message := describeNotReady(f, cluster) + describeNotReady(f, template)

				return strings.Contains(message, privilege), message
			})

			if n := len(listRunning(f)); n != 1 {
				t.Fatalf("without %s of %s: %d machines, want 1", privilege, role, n)
			}

			if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || claim.DeletionTimestamp != nil ||
				claim.Status.EndReason != "" || claim.Status.Phase == v1alpha1.MachineClaimFailed {
				t.Fatalf("without %s of %s: claim %+v, %v", privilege, role, claim.Status, err)
			}

			f.PVE.SetPrivilege(role, privilege, true)
			f.EventuallyReady(cluster)
			f.EventuallyReady(template)
		}
	}
}

// describeNotReady returns the message why an object is not ready, or "" if it is ready.
func describeNotReady(f *fleet.Fleet, obj step.Object) string {
	f.T.Helper()

	if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		f.T.Fatal(err)
	}

	if step.IsReady(obj) {
		return ""
	}

	return step.NotReadyMessage(obj) + "\n"
}
