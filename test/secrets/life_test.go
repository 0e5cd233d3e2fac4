// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"slices"
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

	cases := map[string]func(*v1alpha1.HypervisorMachineTemplate){
		"runner-token, a JIT configuration": func(*v1alpha1.HypervisorMachineTemplate) {},
		"runner-token, a registration token": func(template *v1alpha1.HypervisorMachineTemplate) {
			template.Spec.Bootstrap.Config.GitHub.Registration = v1alpha1.RegistrationToken
		},
		"callback, by an App": func(template *v1alpha1.HypervisorMachineTemplate) {
			template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
			useApp(template)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newWorld(t)
			template := w.NewTemplate()
			change(template)
			w.CreateCluster(w.NewCluster())
			w.Create(template)
			w.Create(w.NewPool(2))
			w.Start()
			w.EventuallyReady(w.NewPool(0))
			w.live()
			w.check()
		})
	}
}

// live runs a job, one that fails, and a machine that cannot work.
func (w *world) live() {
	w.T.Helper()
	w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Duration: 200 * time.Millisecond})
	w.EventuallyDone(1)

	failing := w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Command: "env; sleep 0.2; exit 7"})[0]
	w.Eventually("the job failing", func() (bool, string) {
		for _, job := range w.GitHub.State().Jobs {
			if job.ID == failing.ID {
				return job.Conclusion == "failure", job.Status
			}
		}

		return false, "no such job"
	})
	w.EventuallyClean()

	w.broken.Store(true)
	w.Create(w.NewClaim("broken"))
	w.EventuallyEvent("VMStopped")
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
		w.scanner.Plant(secrets.Secret{Name: what, Value: value})
	}

	// No metric tells of a claim: its controller is what there is.
	w.scanner.Plant(secrets.Secret{Name: "the controller", Value: "machineclaim", Places: slices.DeleteFunc(
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
	w.GitHub.Queue(control.JobSpec{Labels: []string{dye}, Command: "DYE=" + dye + " sh -c 'sleep 1; : " + dye + "'"})
	w.EventuallyDone(1)
	w.EventuallyClean()
	w.Stop()
	w.look()

	found := map[string]bool{}
	for _, finding := range w.scanner.Findings() {
		found[finding.Place] = true
	}

	for _, place := range every() {
		if !found[place] {
			t.Errorf("no dye was found in %s, %d looks", place, w.scanner.Looks()[place])
		}
	}
}
