// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// renderings is the number of cloud-init ISOs to create. Each takes milliseconds.
const renderings = 200

// Machines of all methods and platforms, however they end, leave no long-lived credential on their cloud-init
// ISOs and disks, or in any other recorded data, and no credential that they get only later.
//
// Feature: hyperfleet-operator, Property 15: Security - No Persistent Secrets
func TestPropertyNoPersistentSecrets(t *testing.T) {
	t.Parallel()

	made := newRenderFixture(t)
	property.Check(t, "no cloud-init ISO and no disk holds a long-lived credential", property.Options{Runs: renderings}, prop.ForAll(made.render, genMachineSpec()))

	if made.rendered.Load() < renderings/4 || made.rejected.Load() == 0 {
		t.Errorf("%d cloud-init ISOs were created and %d specifications rejected: too few", made.rendered.Load(), made.rejected.Load())
	}

	w := newFixture(t)
	w.CreateCluster(w.NewCluster())
	w.Create(w.NewPool(0)) // its webhook reports the jobs

	for name, change := range listTemplateChanges() {
		template := w.NewTemplate()
		template.Name = name
		change(template)
		w.Create(template)
	}

	w.Create(w.NewTemplate())
	w.Start()
	w.EventuallyReady(w.NewTemplate())

	names, endings := gen.OneConstOf("jit", "token", "callback", "app"), gen.OneConstOf("done", "failed", "deleted", "off", "clone")
	lives := property.Options{Brief: 6, Workers: 6}
	property.Check(t, "no lifecycle leaves a long-lived credential anywhere", lives, prop.ForAllNoShrink(w.runLifecycle, names, endings, gen.Int64Range(0, 300)))

	// These lifecycles can be too short for the process watcher. Longer ones run until a process has been
	// recorded.
	for range 5 {
		if why := w.runLifecycle("jit", "done", 2000); why != "" {
			t.Error(why)
		}

		if w.has(inArgs, "") && w.has(inEnv, "") {
			break
		}
	}

	w.EventuallyClean()
	w.Stop()
	w.checkFindings()
}

// listTemplateChanges returns the changes that create the templates of lifecycles, by the names of templates.
func listTemplateChanges() map[string]func(*v1alpha1.HypervisorMachineTemplate) {
	return map[string]func(*v1alpha1.HypervisorMachineTemplate){
		"jit": func(*v1alpha1.HypervisorMachineTemplate) {},
		"token": func(t *v1alpha1.HypervisorMachineTemplate) {
			t.Spec.Bootstrap.Config.GitHub.Registration = v1alpha1.RegistrationToken
		},
		"callback": func(t *v1alpha1.HypervisorMachineTemplate) { t.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback },
		"app":      useApp,
	}
}

// runLifecycle runs the lifecycle of one machine with the given ending, after so many milliseconds. It returns
// an error message.
func (w *fixture) runLifecycle(template, ending string, after int64) string {
	claim := w.NewClaim(fmt.Sprintf("life-%d", w.lifecycles.Add(1)))
	claim.Spec.TemplateRef.Name = template
	claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{claim.Name}
	job := control.JobSpec{Labels: []string{claim.Name}, Duration: time.Duration(after) * time.Millisecond}

	if ending == "clone" {
		defer w.PVE.AddFault(pve.Fault{Kind: pve.FaultError, Status: 500, Path: "/nodes/*/qemu/*/clone", Count: 1})()
	}

	if ending == "failed" {
		job.Command = "env; exit 7"
	}

	if err := w.Client.Create(context.Background(), claim); err != nil {
		return err.Error()
	}

	if ending != "deleted" && ending != "off" {
		w.GitHub.Queue(job)

		return w.waitForDeletion(claim)
	}

	if text := w.waitForStart(claim); text != "" {
		return text
	}

	time.Sleep(time.Duration(after) * time.Millisecond)

	if vmid, err := strconv.Atoi(claim.Status.VMRef.VMID); err == nil && ending == "off" {
		w.PVE.PowerOff(vmid)
	} else if err := client.IgnoreNotFound(w.Client.Delete(context.Background(), claim)); err != nil {
		return err.Error()
	}

	return w.waitForDeletion(claim)
}

func (w *fixture) waitForStart(claim *v1alpha1.MachineClaim) string {
	return w.Await(claim.Name+" has started", func() (bool, string) {
		err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(claim), claim)

		up := claim.Status.Phase == v1alpha1.MachineClaimBootstrapping || claim.Status.Phase == v1alpha1.MachineClaimReady

		return err == nil && up && claim.Status.VMRef != nil,
			fmt.Sprintf("%s %v", claim.Status.Phase, err)
	})
}

func (w *fixture) waitForDeletion(claim *v1alpha1.MachineClaim) string {
	return w.Await(claim.Name+" is deleted", func() (bool, string) {
		err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(claim), claim)

		var conditions []string
		for _, c := range claim.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}

		return apierrors.IsNotFound(err), strings.Join(conditions, "; ")
	})
}
