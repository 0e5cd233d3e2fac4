// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/secrets"
)

// Machines that do their jobs, machines whose jobs fail, and machines that do not boot leave no long-lived
// credential anywhere. They leave short-lived credentials only in the documented places.
func TestNoSecretIsLeft(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.CreateCluster(w.NewCluster())

	// A JIT configuration and a registration token on the cloud-init ISO, and a callback with the credential
	// of a GitHub App.
	names := []string{"jit", "token", "callback-app"}
	changes := listTemplateChanges()
	changes["callback-app"] = func(template *v1alpha1.HypervisorMachineTemplate) {
		template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
		useApp(template)
	}

	for _, name := range names {
		template, pool := w.NewTemplate(), w.NewPool(2)
		template.Name, pool.Name = name, name
		changes[name](template)

		pool.Spec.TemplateRef.Name = name
		pool.Spec.Workload.Config.GitHub.Labels = []string{name}

		w.Create(template)
		w.Create(pool)
	}

	w.Start()

	for _, name := range names {
		pool := w.NewPool(0)
		pool.Name = name
		w.EventuallyReady(pool)
	}

	w.runLifecycles(names)
	w.checkFindings()
}

// runLifecycles runs a job that succeeds, a job that fails, and a machine that does not boot, for each
// template.
func (w *fixture) runLifecycles(names []string) {
	w.T.Helper()

	failing := map[int64]bool{}

	for _, name := range names {
		w.GitHub.Queue(control.JobSpec{Labels: []string{name}, Duration: 200 * time.Millisecond})

		for _, job := range w.GitHub.Queue(control.JobSpec{Labels: []string{name}, Command: "env; sleep 0.2; exit 7"}) {
			failing[job.ID] = true
		}
	}

	w.EventuallyJobsDone(len(names))
	w.Eventually("the jobs have failed", func() (bool, string) {
		failed, open := 0, ""

		for _, job := range w.GitHub.State().Jobs {
			if failing[job.ID] && job.Conclusion == "failure" {
				failed++
			} else if failing[job.ID] {
				open = fmt.Sprintf("%v is %s %s", job.Labels, job.Status, job.Conclusion)
			}
		}

		return failed == len(names), open
	})
	w.EventuallyClean()

	w.isBroken.Store(true)

	for _, name := range names {
		claim := w.NewClaim("broken-" + name)
		claim.Spec.TemplateRef.Name = name
		w.Create(claim)
	}

	w.Eventually("the machines have stopped", func() (bool, string) {
		events := w.Events()
		stopped := func(name string) bool {
			return slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "VMStopped MachineClaim/broken-"+name+":") })
		}

		return !slices.ContainsFunc(names, func(name string) bool { return !stopped(name) }), strings.Join(events, "\n")
	})
	w.EventuallyClean()
	w.Stop()
}

// The scans cover every place: the claim's name and the job's marker are found in all places.
func TestScansCoverEveryPlace(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	jobMarker := "marked-" + newCredential(t, "")

	for what, value := range map[string]string{"the marker": jobMarker, "the namespace": w.Namespace} {
		w.scanner.Register(secrets.Secret{Name: what, Value: value})
	}

	// Metrics contain no names of claims, but they contain the name of the controller.
	w.scanner.Register(secrets.Secret{Name: "the controller", Value: "machineclaim", Places: slices.DeleteFunc(
		listPlaces(), func(place string) bool { return place == inMetrics })})

	template := w.NewTemplate()
	claim := w.NewClaim(jobMarker)
	claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{jobMarker}

	w.CreateCluster(w.NewCluster())
	w.Create(template)
	w.Create(w.NewPool(0)) // its webhook reports the job
	w.Start()
	w.EventuallyReady(template)
	w.EventuallyReady(w.NewPool(0))
	w.Create(claim)

	// The job runs until its process has been recorded.
	seen := filepath.Join(t.TempDir(), "seen")
	w.GitHub.Queue(control.JobSpec{Labels: []string{jobMarker}, Command: fmt.Sprintf(
		"MARKER=%s sh -c 'while [ ! -e %s ]; do sleep 0.1; done; : %s'", jobMarker, seen, jobMarker)})
	w.Eventually("the job's process is recorded", func() (bool, string) {
		return w.has(inArgs, jobMarker) && w.has(inEnv, jobMarker), "it is not recorded yet"
	})

	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	w.EventuallyJobsDone(1)
	w.EventuallyClean()
	w.Stop()
	w.scanAll()

	found := map[string]bool{}
	for _, finding := range w.scanner.Findings() {
		found[finding.Place] = true
	}

	for _, place := range listPlaces() {
		if !found[place] {
			t.Errorf("the marker was not found in %s after %d scans", place, w.scanner.ScanCounts()[place])
		}
	}
}
