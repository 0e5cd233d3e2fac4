// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// phaseOrder returns the phases of a claim in their order.
func phaseOrder() []v1alpha1.MachineClaimPhase {
	return []v1alpha1.MachineClaimPhase{
		v1alpha1.MachineClaimPending, v1alpha1.MachineClaimProvisioning, v1alpha1.MachineClaimBootstrapping,
		v1alpha1.MachineClaimReady, v1alpha1.MachineClaimDraining, v1alpha1.MachineClaimTerminating,
	}
}

// testLifecycle checks that the machine of any claim is created from its template, gets its credential by
// cloud-init, runs one job, and is deleted, and that the phases are in order. The SPIRE join token that the
// requirements document names here is part of attestation.
func testLifecycle(t *testing.T, w *fixture) {
	t.Helper()

	property.Check(t, "a claim's machine has the expected lifecycle", newOptions(5, 16), prop.ForAllNoShrink(func(cpu, memory int32, labels []string) string {
		name := w.newName("life")
		template := w.NewTemplate()
		template.Name = name
		template.Spec.Resources = v1alpha1.MachineResources{
			CPU: cpu, Memory: *resource.NewQuantity(int64(memory)<<20, resource.BinarySI),
		}

		claim := w.NewClaim(name)
		claim.Spec.TemplateRef.Name = name
		claim.Spec.WorkloadConfig.Config.GitHub.Labels = append([]string{name}, labels...)

		var seen []v1alpha1.MachineClaimPhase

		return firstProblem(
			func() string { return w.create(template) },
			func() string { return w.create(claim) },
			func() string {
				w.GitHub.Queue(control.JobSpec{Labels: []string{name}, Duration: 30 * time.Millisecond})

				return w.Await(name+" being created, run and deleted", func() (bool, string) {
					there, err := w.get(claim)
					if there && claim.Status.Phase != "" && (len(seen) == 0 || seen[len(seen)-1] != claim.Status.Phase) {
						seen = append(seen, claim.Status.Phase)
					}

					return !there && err == nil, describeConditions(claim)
				})
			},
			func() string { return checkPhaseOrder(seen) },
			func() string { return w.checkMachine(claim, cpu, memory) },
			func() string { return checkJobDone(w, name) },
			func() string { return w.findClaimLeftovers(claim) },
			func() string { return w.delete(template) },
		)
	}, gen.Int32Range(1, 8), gen.Int32Range(256, 8192), gen.SliceOfN(2, gen.RegexMatch(`^[a-z]{3,12}$`))))
}

// checkPhaseOrder returns a message if the phases are out of order.
func checkPhaseOrder(seen []v1alpha1.MachineClaimPhase) string {
	at := 0

	for _, phase := range seen {
		next := slices.Index(phaseOrder()[at:], phase)
		if next < 0 {
			return fmt.Sprintf("phases out of order: %v", seen)
		}

		at += next
	}

	return ""
}

// checkMachine compares the machine at its boot with its specification.
func (w *fixture) checkMachine(claim *v1alpha1.MachineClaim, cpu, memory int32) string {
	b, ok := w.getBoot(claim)
	if !ok {
		return "the machine has never booted"
	}

	if n := w.countMachines(claim); n != 1 {
		return fmt.Sprintf("%d machines were created", n)
	}

	ref := claim.Status.VMRef
	if ref == nil || ref.HypervisorCluster != w.NewCluster().Name || ref.VMID != strconv.Itoa(b.vm.VMID) || ref.Node != b.vm.Node {
		return fmt.Sprintf("status.vmRef is %+v, but the machine is %d on node %s", ref, b.vm.VMID, b.vm.Node)
	}

	cfg, err := fleet.ReadGuestConfig(b.drive)
	if err != nil {
		return err.Error()
	}

	if cfg.JITConfig == "" {
		return "the cloud-init data have no credential"
	}

	want := map[string]string{"cores": strconv.Itoa(int(cpu)), "memory": strconv.Itoa(int(memory))}
	for key, value := range want {
		if got := b.vm.Config[key]; got != value {
			return fmt.Sprintf("%s is %q, want %q", key, got, value)
		}
	}

	// Property 19 checks that the clone is a linked clone, on a storage that shows this.
	if disk := b.vm.Config["scsi0"]; !strings.HasPrefix(disk, "local-lvm:") || !strings.HasSuffix(disk, "size=20G") {
		return fmt.Sprintf("disk %q is not a clone of the disk of the template", disk)
	}

	return ""
}

// checkJobDone returns a message if no job with the label has succeeded.
func checkJobDone(w *fixture, label string) string {
	for _, job := range w.GitHub.State().Jobs {
		if slices.Contains(job.Labels, label) && job.Conclusion == "success" {
			return ""
		}
	}

	return "the job did not succeed"
}

// testCleanup checks that a claim that is deleted in any phase exists until everything of it is deleted.
func testCleanup(t *testing.T, w *fixture) {
	t.Helper()

	moments := []any{
		v1alpha1.MachineClaimPending, v1alpha1.MachineClaimProvisioning, v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady,
	}

	property.Check(t, "a deleted claim leaves nothing", newOptions(6, 16), prop.ForAllNoShrink(func(when v1alpha1.MachineClaimPhase, after int64) string {
		claim := w.NewClaim(w.newName("gone"))

		return firstProblem(
			func() string { return w.create(claim) },
			func() string {
				return w.waitForPhase(claim, phaseOrder()[slices.Index(phaseOrder(), when):]...)
			},
			func() string {
				if when != v1alpha1.MachineClaimPending && !slices.Contains(claim.Finalizers, v1alpha1.FinalizerVMCleanup) {
					return fmt.Sprintf("finalizers are %v", claim.Finalizers)
				}

				time.Sleep(time.Duration(after) * time.Millisecond)

				return w.delete(claim)
			},
			func() string { return w.waitForDeletion(claim) },
			func() string { return w.findClaimLeftovers(claim) },
			func() string {
				if n := w.countMachines(claim); n > 1 {
					return fmt.Sprintf("%d machines were created", n)
				}

				return ""
			},
		)
	}, gen.OneConstOf(moments...), gen.Int64Range(0, 60)))
}

// testRetries checks that after any failure during the creation of a machine, either the machine runs its job, or
// the conditions of its claim report the failure, and that there is never a second machine. It uses a hypervisor
// of its own.
func testRetries(t *testing.T, w *fixture) {
	t.Helper()

	site := w.createSite("retry", true, fleet.Model())
	w.EventuallyReady(site.Template)

	kinds := []any{
		pve.FaultError, pve.FaultLockTimeout, pve.FaultTaskLock, pve.FaultTaskError, pve.FaultWarnings, pve.FaultTaskLost,
		pve.FaultTaskKilled, pve.FaultCutConnection, pve.FaultProxyTimeout, pve.FaultStale, pve.FaultVMCrash,
	}
	paths := []any{"/nodes/*/qemu/*/clone", "/nodes/*/qemu/*/config", "/nodes/*/qemu/*/status/start", "/nodes/*/storage/*/upload", ""}

	property.Check(t, "a failure is retried or named", newOptions(6, 20), prop.ForAllNoShrink(func(kind pve.FaultKind, path string, count int) string {
		claim := site.NewClaim(w.Fleet, w.newName("retry"))
		claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{claim.Name}
		w.GitHub.Queue(control.JobSpec{Labels: []string{claim.Name}})

		fault := pve.Fault{Kind: kind, Path: path, Count: count}
		if path == "" {
			fault.Path = "/nodes/*/qemu/*"
		}

		if kind == pve.FaultStale {
			fault.Path = ""
		}

		defer site.PVE.AddFault(fault)()

		return firstProblem(
			func() string { return w.create(claim) },
			func() string { return w.waitUntilSettled(claim) },
			func() string {
				if n := w.countMachines(claim); n > 1 {
					return fmt.Sprintf("%d machines were created", n)
				}

				if claim.Status.Attempts > 10 {
					return fmt.Sprintf("%d attempts", claim.Status.Attempts)
				}

				return w.delete(claim)
			},
			func() string { return w.waitForDeletion(claim) },
			func() string { return w.findClaimLeftovers(claim) },
		)
	}, gen.OneConstOf(kinds...), gen.OneConstOf(paths...), gen.IntRange(1, 2)))
}

// waitUntilSettled waits until a claim is deleted or has failed with a message, and checks that a claim that waits
// has a reason.
func (w *fixture) waitUntilSettled(claim *v1alpha1.MachineClaim) string {
	withoutReason := ""
	problem := w.Await(claim.Name+" being deleted or failed", func() (bool, string) {
		there, err := w.get(claim)
		if err != nil || !there {
			return err == nil, fmt.Sprint(err)
		}

		ready := meta.FindStatusCondition(claim.Status.Conditions, step.Ready)
		if ready != nil && ready.Status == "False" && ready.Reason == "" {
			withoutReason = describeConditions(claim)
		}

		if claim.Status.Phase == v1alpha1.MachineClaimFailed && ready != nil && ready.Message == "" {
			withoutReason = describeConditions(claim)
		}

		return claim.Status.Phase == v1alpha1.MachineClaimFailed, describeConditions(claim)
	})

	return problem + withoutReason
}

// testShutdown checks that a machine that is powered off at any time after its start is detected and deleted
// together with its claim. The default settings have to keep the limit of 30 seconds: the interval of the
// configuration plus the delay of the hypervisor.
func testShutdown(t *testing.T, w *fixture) {
	t.Helper()

	const (
		broadcast = 10 * time.Second // pvestatd's interval, the maximum age of a status
		limit     = 30 * time.Second
	)

	defaults := config.Default().Runners
	if worst := defaults.ListInterval + broadcast; worst >= limit {
		t.Errorf("a stopped VM is found within %s, want less than %s", worst, limit)
	}

	moments := []any{v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady}

	property.Check(t, "a machine that is off is removed", newOptions(5, 16), prop.ForAllNoShrink(func(when v1alpha1.MachineClaimPhase, after int64) string {
		claim := w.NewClaim(w.newName("off"))

		return firstProblem(
			func() string { return w.create(claim) },
			func() string {
				return w.waitForPhase(claim, phaseOrder()[slices.Index(phaseOrder(), when):]...)
			},
			func() string {
				time.Sleep(time.Duration(after) * time.Millisecond)

				id, err := strconv.Atoi(claim.Status.VMRef.VMID)
				if err != nil {
					return err.Error()
				}

				w.PVE.PowerOff(id)

				return w.waitForDeletion(claim)
			},
			func() string { return w.findClaimLeftovers(claim) },
		)
	}, gen.OneConstOf(moments...), gen.Int64Range(0, 100)))
}
