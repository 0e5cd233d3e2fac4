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

// Machines that do their jobs, that have jobs which fail, and that cannot work at all leave no
// long-lived credential anywhere, and short-lived ones where the documents say alone.
func TestNoSecretIsLeft(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.CreateCluster(w.NewCluster())

	// A JIT configuration and a registration token on the cloud-init ISO, and by a call as an App.
	names := []string{"jit", "token", "callback-app"}
	changes := kinds()
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

	w.live(names)
	w.check()
}

// live runs a job, one that fails, and a machine that cannot work, of each kind.
func (w *world) live(names []string) {
	w.T.Helper()

	failing := map[int64]bool{}

	for _, name := range names {
		w.GitHub.Queue(control.JobSpec{Labels: []string{name}, Duration: 200 * time.Millisecond})

		for _, job := range w.GitHub.Queue(control.JobSpec{Labels: []string{name}, Command: "env; sleep 0.2; exit 7"}) {
			failing[job.ID] = true
		}
	}

	w.EventuallyJobsDone(len(names))
	w.Eventually("the jobs failing", func() (bool, string) {
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

	w.broken.Store(true)

	for _, name := range names {
		claim := w.NewClaim("broken-" + name)
		claim.Spec.TemplateRef.Name = name
		w.Create(claim)
	}

	w.Eventually("machines that stop", func() (bool, string) {
		events := w.Events()
		stopped := func(name string) bool {
			return slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "VMStopped MachineClaim/broken-"+name+":") })
		}

		return !slices.ContainsFunc(names, func(name string) bool { return !stopped(name) }), strings.Join(events, "\n")
	})
	w.EventuallyClean()
	w.Stop()
}

// Every place is really looked at: what a life is called, and what its job is told, is found
// in all of them.
func TestEveryPlaceIsLookedAt(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	dye := "dyed-" + unguessable(t, "")

	for what, value := range map[string]string{"the dye": dye, "the namespace": w.Namespace} {
		w.scanner.Register(secrets.Secret{Name: what, Value: value})
	}

	// No metric tells of a claim: its controller is what there is.
	w.scanner.Register(secrets.Secret{Name: "the controller", Value: "machineclaim", Places: slices.DeleteFunc(
		every(), func(place string) bool { return place == inMetrics })})

	template := w.NewTemplate()
	claim := w.NewClaim(dye)
	claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{dye}

	w.CreateCluster(w.NewCluster())
	w.Create(template)
	w.Create(w.NewPool(0)) // whose webhook tells of the job
	w.Start()
	w.EventuallyReady(template)
	w.EventuallyReady(w.NewPool(0))
	w.Create(claim)

	// The job lasts until its process was seen.
	seen := filepath.Join(t.TempDir(), "seen")
	w.GitHub.Queue(control.JobSpec{Labels: []string{dye}, Command: fmt.Sprintf(
		"DYE=%s sh -c 'while [ ! -e %s ]; do sleep 0.1; done; : %s'", dye, seen, dye)})
	w.Eventually("the job's process being seen", func() (bool, string) {
		return w.has(inArgs, dye) && w.has(inEnv, dye), "it is not"
	})

	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	w.EventuallyJobsDone(1)
	w.EventuallyClean()
	w.Stop()
	w.look()

	found := map[string]bool{}
	for _, finding := range w.scanner.Findings() {
		found[finding.Place] = true
	}

	for _, place := range every() {
		if !found[place] {
			t.Errorf("no dye was found in %s, %d looks", place, w.scanner.ScanCounts()[place])
		}
	}
}
