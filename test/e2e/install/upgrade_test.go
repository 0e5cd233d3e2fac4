// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// laterValues are the values of the chart of the operator that the first release does not have.
var laterValues = []string{"drain", "monitoring", "shards", "tls"}

// TestUpgradeWithRunningMachines checks that the commands of the page on upgrades, and a rollback, leave running
// machines as they are, although the release was installed with only the values of the first release. No job loses
// its machine, and no machine is created twice.
func TestUpgradeWithRunningMachines(t *testing.T) {
	t.Parallel()

	f, u, page := newTutorialUser(t)
	f.Namespace, f.OperatorUID = "ci", defaultOwner

	u.linkCharts("0.2.0")
	u.removeLaterValues()
	u.runCommands(page[0])

	operator := startOperator(t, f)
	u.runCommands(page[1])
	u.setWebhook(f)
	u.runCommands(page[2])

	over := filepath.Join(u.dir, "over")
	startJobs := func(count int) {
		t.Helper()
		f.GitHub.Queue(control.JobSpec{
			Labels: []string{"linux", "x64"}, Count: count, Command: "while [ ! -e " + over + " ]; do sleep 0.05; done",
		})
		f.GitHub.WaitUntil("all jobs run", func(s control.State) bool {
			running := 0

			for _, job := range s.Jobs {
				if job.Status == "in_progress" {
					running++
				}
			}

			return running == len(s.Jobs)
		})
	}

	startJobs(2)

	before := listMachines(t, f)

	must.Do(t, operator.Process.Stop())
	u.runCommands(readBlocks(t, root+"docs/operate/upgrade.md", "run: TestTutorial.*")[0])
	operator = startOperator(t, f)
	startJobs(1)

	must.Do(t, operator.Process.Stop())
	u.runCommands("helm rollback hyperfleet 1 --namespace hyperfleet-system\n")
	startOperator(t, f)
	startJobs(1)

	after := listMachines(t, f)
	for claim, vm := range before {
		if after[claim] != vm {
			t.Errorf("claim %s had VM %s, and now has %q: %s", claim, vm, after[claim], cmp.Diff(before, after))
		}
	}

	u.writeFile("over", "")
	f.EventuallyJobsDone(4)
	f.EventuallyClean()

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d machines were created for 4 jobs", made)
	}
}

// removeLaterValues removes the values from the chart of the operator that the first release does not have.
func (u *user) removeLaterValues() {
	u.t.Helper()

	// Helm reads a chart from a folder of any name.
	u.runCommands("tar xzf hyperfleet-0.1.0.tgz && rm hyperfleet-0.1.0.tgz && mv hyperfleet hyperfleet-0.1.0.tgz\n")

	file := filepath.Join(u.dir, "hyperfleet-0.1.0.tgz", "values.yaml")
	text, err := os.ReadFile(file)
	u.must(err)

	values := map[string]any{}
	u.must(yaml.Unmarshal(text, &values))

	for _, key := range laterValues {
		if _, ok := values[key]; !ok {
			u.t.Errorf("the chart has no value %s", key)
		}

		delete(values, key)
	}

	text, err = yaml.Marshal(values)
	u.must(err)
	u.must(os.WriteFile(file, text, 0o600))
}

// listMachines returns the VM of each claim.
func listMachines(t *testing.T, f *fleet.Fleet) map[string]string {
	t.Helper()

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
		t.Fatal(err)
	}

	vms := map[string]string{}

	for i := range claims.Items {
		if ref := claims.Items[i].Status.VMRef; ref != nil {
			vms[claims.Items[i].Name] = ref.VMID
		}
	}

	return vms
}
