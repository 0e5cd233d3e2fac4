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

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

var reRole = regexp.MustCompile(`(?m)^ *pveum role add (\w+) --privs "([^"]+)"`)

// documentedRoles are the privileges of the guide, by role.
func documentedRoles(t *testing.T) map[string][]string {
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

// unneeded are documented privileges whose lack stops nothing that this fleet does, and why.
func unneeded() map[string]string {
	return map[string]string{
		"HyperFleetVM VM.Config.Cloudinit":      "the cloud-init source builtin alone needs it",
		"HyperFleetISO Datastore.AllocateSpace": "Datastore.AllocateTemplate suffices for uploads",
		"HyperFleetVM VM.GuestAgent.Audit":      "machines' addresses stay unknown, which is a warning",
		"HyperFleetPool Pool.Audit":             "the pool is named, and not looked at",
	}
}

// Each privilege of the guide is taken away while a machine runs, one at a time: a condition
// names it, the machine and its claim stay, and all is well when it is back.
func TestPrivilegesTakenAway(t *testing.T) {
	t.Parallel()

	f := quick(t, fleet.Options{Guest: idle})
	f.Runners.ClusterInterval, f.Runners.TemplateInterval = time.Second, time.Second
	cluster, template, claim := f.NewCluster(), f.NewTemplate(), f.NewClaim("runs")
	begin(f, template, claim)
	defer f.Stop()

	eventuallyRunning(f, 1)

	roles := documentedRoles(t)
	if len(roles) < 7 {
		t.Fatalf("the guide has the roles %v", roles)
	}

	for _, role := range slices.Sorted(maps.Keys(roles)) {
		for _, privilege := range roles[role] {
			if unneeded()[role+" "+privilege] != "" {
				continue
			}

			f.PVE.SetPrivilege(role, privilege, false)
			f.Eventually("a condition that names "+privilege+" of "+role, func() (bool, string) {
				said := notReady(f, cluster) + notReady(f, template)

				return strings.Contains(said, privilege), said
			})

			if n := len(operatorRun(f)); n != 1 {
				t.Fatalf("without %s of %s: %d machines", privilege, role, n)
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

// notReady is what an object says of why it is not Ready.
func notReady(f *fleet.Fleet, obj step.Object) string {
	f.T.Helper()

	if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		f.T.Fatal(err)
	}

	if step.IsReady(obj) {
		return ""
	}

	return step.NotReadyMessage(obj) + "\n"
}
