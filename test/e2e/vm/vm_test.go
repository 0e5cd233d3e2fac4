// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/e2e/vm"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/spire"
)

// waitTimeout limits each wait. It allows for a busy host.
const waitTimeout = 10 * time.Minute

// maxRatio is the maximum time from webhook to job, as a part of the untuned boot.
const maxRatio = 0.5

// jobScript runs in the machine. It fails unless it runs as an ordinary user on the requested disk, and can
// read neither the machine's configuration nor its identity.
const jobScript = `set -eu
test "$(id -un)" = runner
test "$(df --output=size -B1 / | tail -n 1)" -gt 3000000000
test ! -e /etc/hyperfleet/runner-config.json
if ls /run/hyperfleet/spire || cat /var/lib/cloud/instance/user-data.txt; then exit 1; fi`

// A job runs from its webhook to the deletion of its machine. The machine boots, attests to SPIRE, and then
// gets its credential.
func TestJobInARealMachine(t *testing.T) { //nolint:paralleltest // the boots must not run in parallel
	images := vm.FindImages(t)
	logs := images.CreateLogDir(t)
	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"))

	sayf := progress.NewPrinter(t)
	before := measureUntuned(t, images, logs, "before", sayf)
	server := spire.Start(t)
	f := newFleet(t, env, images, logs)
	vm.StartOperator(t, f, server, logs)
	f.EventuallyReady(f.NewPool(0))

	console := &vm.Console{}
	followConsole(t, console, filepath.Join(logs, "serial"))

	queued := time.Now()
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: jobScript})
	f.Eventually("the job being over", func() (bool, string) {
		over := f.GitHub.State().Jobs[0]

		return over.Status == "completed", over.Status
	})

	if over := f.GitHub.State().Jobs[0]; over.Conclusion != "success" {
		t.Errorf("the job ended with %s: see %s", over.Conclusion, logs)
	}

	f.EventuallyClean()

	// The speed of the host varies, so the untuned image boots both before and after the job.
	mean := (before + measureUntuned(t, images, logs, "after", sayf)) / 2

	phases := vm.ReachedPhases(console)
	begun, ok := findStartTime(f)
	if !ok {
		t.Fatal("the job has no start time")
	}

	phases = append(phases, vm.Phase{Name: "GitHub knows of it", Time: begun})
	ratio := begun.Sub(queued).Seconds() / mean.Seconds()
	sayf("from webhook to job:\n%s", vm.FormatTable(queued, phases, mean))
	sayf("webhook to job started: %.2f of the untuned boot (goal on a machine that does nothing else: at most %.2f)", ratio, maxRatio)

	for _, line := range []string{`"phase":"Attested"`, `"phase":"Running"`} {
		if _, ok := console.FindFirst(regexp.MustCompile(line)); !ok {
			t.Errorf("the machine's console does not contain %s: see %s", line, logs)
		}
	}

	f.Eventually("SPIRE having forgotten the machine", func() (bool, string) {
		left := listIdentities(t, server)

		return len(left) == 0, strings.Join(left, ", ")
	})
}

// measureUntuned boots the untuned image.
func measureUntuned(t *testing.T, images vm.Images, logs, when string, sayf func(string, ...any)) time.Duration {
	t.Helper()
	sayf("booting the untuned image, %s the job", when)

	took := images.BootUntuned(t, logs, when)
	sayf("the untuned image ran the user's first command after %.1f s", took.Seconds())

	return took
}

// listIdentities returns the machines' entries and agents at the SPIRE server.
func listIdentities(t *testing.T, server *spire.Server) []string {
	t.Helper()

	var out []string

	conn := server.Dial(t)

	entries, err := entryv1.NewEntryClient(conn).ListEntries(t.Context(), &entryv1.ListEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}

	for _, entry := range entries.GetEntries() {
		out = append(out, "entry "+entry.GetSpiffeId().GetPath())
	}

	agents, err := agentv1.NewAgentClient(conn).ListAgents(t.Context(), &agentv1.ListAgentsRequest{})
	if err != nil {
		t.Fatal(err)
	}

	for _, agent := range agents.GetAgents() {
		if !agent.GetBanned() {
			out = append(out, "agent "+agent.GetId().GetPath())
		}
	}

	return out
}

// newFleet returns a fleet whose machines boot and attest.
func newFleet(t *testing.T, env *kube.Env, images vm.Images, logs string) *fleet.Fleet {
	t.Helper()

	model := pve.DefaultModel()
	model.Guest = pve.Guest{Kind: pve.GuestQEMU, WorkDir: logs, QEMU: images.NewQEMU(t)}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Timeout = waitTimeout

	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	template.Spec.Bootstrap.Config.GitHub.APIURL = vm.StartForgeProxy(t, f)
	template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
	template.Spec.Resources = v1alpha1.MachineResources{CPU: 2, Memory: resource.MustParse("1Gi")}

	disk := resource.MustParse("4Gi")
	template.Spec.Resources.Disk = &disk

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Create(f.NewPool(1))

	return f
}

// followConsole reads the machine's console until the test ends.
func followConsole(t *testing.T, console *vm.Console, folder string) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- console.Follow(ctx, folder) }()

	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Errorf("follow the console: %v", err)
		}
	})
}

// findStartTime returns the job's start time at GitHub.
func findStartTime(f *fleet.Fleet) (time.Time, bool) {
	for _, job := range f.GitHub.State().Jobs {
		if !job.StartedAt.IsZero() {
			return job.StartedAt, true
		}
	}

	return time.Time{}, false
}
