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

// renderings is how often a cloud-init ISO is made, which takes milliseconds.
const renderings = 200

// Whatever machine is made, by whatever method, for whatever platform, and however it ends:
// neither its cloud-init ISO nor its disk, nor anything else that tells of it, holds a long-lived
// credential, and none that it is to get later.
//
// Feature: hyperfleet-operator, Property 15: Security - No Persistent Secrets
func TestPropertyNoPersistentSecrets(t *testing.T) {
	t.Parallel()

	made := newSite(t)
	property.Check(t, "no cloud-init ISO and no disk holds a long-lived credential", property.Options{Runs: renderings}, prop.ForAll(made.make, genOrder()))

	if made.media.Load() < renderings/4 || made.refused.Load() == 0 {
		t.Errorf("%d cloud-init ISOs were made, %d orders refused: too few to tell", made.media.Load(), made.refused.Load())
	}

	w := newWorld(t)
	w.CreateCluster(w.NewCluster())
	w.Create(w.NewPool(0)) // whose webhook tells of the jobs

	for name, change := range kinds() {
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
	property.Check(t, "no life leaves one anywhere", lives, prop.ForAllNoShrink(w.one, names, endings, gen.Int64Range(0, 300)))

	// Those lives may all have ended before a process of theirs was looked at: others last,
	// until one was.
	for range 5 {
		if why := w.one("jit", "done", 2000); why != "" {
			t.Error(why)
		}

		if w.has(inArgs, "") && w.has(inEnv, "") {
			break
		}
	}

	w.EventuallyClean()
	w.Stop()
	w.check()
}

// kinds are the templates of lives.
func kinds() map[string]func(*v1alpha1.HypervisorMachineTemplate) {
	return map[string]func(*v1alpha1.HypervisorMachineTemplate){
		"jit": func(*v1alpha1.HypervisorMachineTemplate) {},
		"token": func(t *v1alpha1.HypervisorMachineTemplate) {
			t.Spec.Bootstrap.Config.GitHub.Registration = v1alpha1.RegistrationToken
		},
		"callback": func(t *v1alpha1.HypervisorMachineTemplate) { t.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback },
		"app":      useApp,
	}
}

// one is one machine's life, which ends as it is said to, after so many milliseconds.
func (w *world) one(template, ending string, after int64) string {
	claim := w.NewClaim(fmt.Sprintf("life-%d", w.lives.Add(1)))
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

		return w.awaitGone(claim)
	}

	if text := w.awaitStarted(claim); text != "" {
		return text
	}

	time.Sleep(time.Duration(after) * time.Millisecond)

	if vmid, err := strconv.Atoi(claim.Status.VMRef.VMID); err == nil && ending == "off" {
		w.PVE.PowerOff(vmid)
	} else if err := client.IgnoreNotFound(w.Client.Delete(context.Background(), claim)); err != nil {
		return err.Error()
	}

	return w.awaitGone(claim)
}

func (w *world) awaitStarted(claim *v1alpha1.MachineClaim) string {
	return w.Await(claim.Name+" having started", func() (bool, string) {
		err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(claim), claim)

		up := claim.Status.Phase == v1alpha1.MachineClaimBootstrapping || claim.Status.Phase == v1alpha1.MachineClaimReady

		return err == nil && up && claim.Status.VMRef != nil,
			fmt.Sprintf("%s %v", claim.Status.Phase, err)
	})
}

func (w *world) awaitGone(claim *v1alpha1.MachineClaim) string {
	return w.Await(claim.Name+" being gone", func() (bool, string) {
		err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(claim), claim)

		var conditions []string
		for _, c := range claim.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}

		return apierrors.IsNotFound(err), strings.Join(conditions, "; ")
	})
}
