// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	// defaultTrialTimeout is how long a machine may take until its first report: the time for which the
	// operator waits for a runner, and the time to clone the machine.
	defaultTrialTimeout = 20 * time.Minute
	// deletionTimeout is how long the deletion of the claim and its machine may take.
	deletionTimeout = 5 * time.Minute
	// pollInterval is the time between two reads of the claim.
	pollInterval = 500 * time.Millisecond
	// trialPrefix is the prefix of the names of test claims. The name is also the runner label that no job
	// asks for.
	trialPrefix = "doctor-"
)

// Trial is the result of a test with one machine of a template. It is part of the JSON output: fields may be
// added, but not removed or changed.
type Trial struct {
	Namespace string `json:"namespace"`
	Template  string `json:"template"`
	// Claim is the name of the MachineClaim. VM and Node are the ID and the node of its machine.
	Claim string `json:"claim,omitempty"`
	VM    string `json:"vm,omitempty"`
	Node  string `json:"node,omitempty"`
	// Phases that the machine has completed, in order.
	Phases []TrialPhase `json:"phases"`
	// Alive is true if the guest has reported or the runner was online. Removed is true if the claim and its
	// machine were deleted.
	Alive   bool `json:"alive"`
	Removed bool `json:"removed"`
	// Reason and Message tell why the test failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// TrialPhase is a phase of a machine's lifecycle and its duration.
type TrialPhase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// trial creates a test machine and follows it.
type trial struct {
	client client.Client
	// progress receives one line for each event. With JSON output the lines are discarded.
	progress io.Writer
	// timeout limits the time until the machine's first report.
	timeout time.Duration

	Trial
}

// prepareClaim returns a claim for the template, which is not created yet, and the template. The claim has
// the workload of a RunnerPool that uses the template, so that the machine gets its credential in the same
// way as machines of that pool.
func (t *trial) prepareClaim(ctx context.Context) (*v1alpha1.MachineClaim, *v1alpha1.HypervisorMachineTemplate, error) {
	template := &v1alpha1.HypervisorMachineTemplate{}
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Template}, template); err != nil {
		return nil, nil, fmt.Errorf("get template %s/%s: %w", t.Namespace, t.Template, err)
	}

	pools := &v1alpha1.RunnerPoolList{}
	if err := t.client.List(ctx, pools, client.InNamespace(t.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list RunnerPools in namespace %s: %w", t.Namespace, err)
	}

	i := slices.IndexFunc(pools.Items, func(p v1alpha1.RunnerPool) bool { return p.Spec.TemplateRef.Name == t.Template })
	if i < 0 {
		return nil, nil, fmt.Errorf("no RunnerPool in namespace %s uses template %s: create one, because the pool names the CI "+
			"platform with which the machine registers (a pool with scaling.maxReplicas: 0 creates no machines)", t.Namespace, t.Template)
	}

	name := trialPrefix + rand.String(8) //nolint:mnd // long enough that two names do not collide

	workload, err := idleWorkload(pools.Items[i].Spec.Workload, name)
	if err != nil {
		return nil, nil, fmt.Errorf("RunnerPool %s: %w", pools.Items[i].Name, err)
	}

	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: t.Template}, WorkloadConfig: *workload,
			// The operator stops the machine after these limits even if this program is killed.
			Lifecycle: &v1alpha1.Lifecycle{
				MaxLifetime: &metav1.Duration{Duration: t.timeout + deletionTimeout}, BootstrapTimeout: &metav1.Duration{Duration: t.timeout},
			},
		},
	}, template, nil
}

// idleWorkload returns a copy of the workload with which a runner gets no job: its only label is one that no
// job asks for. It returns an error for CI platforms on which every machine is created for one job.
func idleWorkload(source v1alpha1.Workload, label string) (*v1alpha1.Workload, error) {
	workload := source.DeepCopy()
	workload.Webhook = nil

	switch {
	case workload.Type == v1alpha1.WorkloadGitHubActions:
		if workload.Config == nil {
			workload.Config = &v1alpha1.WorkloadConfig{}
		}

		if workload.Config.GitHub == nil {
			workload.Config.GitHub = &v1alpha1.GitHubActionsConfig{}
		}

		github := workload.Config.GitHub
		github.Labels, github.ScaleSet, github.RunnerName = []string{label}, "", ""
	case workload.Type == v1alpha1.WorkloadGitLabCI && workload.Config != nil && workload.Config.GitLab != nil:
		workload.Config.GitLab.Tags, workload.Config.GitLab.RunUntagged = []string{label}, false
	default:
		return nil, fmt.Errorf("every machine of %s is created for one job: queue a job, and follow it with `hyperfleet job ID`",
			workload.Type)
	}

	return workload, nil
}

// formatQuestion returns the question that a person has to confirm before the machine is created.
func formatQuestion(claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate) string {
	return fmt.Sprintf("Create one machine (%d CPUs, %s memory) from template %s/%s on HypervisorCluster %s, with a runner on %s, "+
		"and delete both afterwards?", template.Spec.Resources.CPU, template.Spec.Resources.Memory.String(), template.Namespace,
		template.Name, template.Spec.HypervisorClusterRef.Name, claim.Spec.WorkloadConfig.Type)
}

// errDeclined reports that the person did not confirm.
var errDeclined = errors.New("nothing was created: confirm with y, or use --yes")

// confirm prints a question and reads the reply. It returns errDeclined unless the reply is y or yes.
func confirm(in io.Reader, out io.Writer, question string) error {
	fmt.Fprintf(out, "%s [y/N] ", cli.SanitizeLine(question))

	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read reply: %w", err)
	}

	if reply := strings.ToLower(strings.TrimSpace(line)); reply != "y" && reply != "yes" {
		fmt.Fprintln(out)

		return errDeclined
	}

	return nil
}

// run creates the claim, follows its machine until the first report, and deletes the claim, also after an
// interrupt. It returns an error if a request to the API server fails. If the machine fails, run records why
// in the Trial.
func (t *trial) run(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	if err := t.client.Create(ctx, claim); err != nil {
		return fmt.Errorf("create MachineClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}

	t.Claim = claim.Name
	t.reportf(OK, "MachineClaim %s/%s from template %s", t.Namespace, t.Claim, t.Template)

	followCtx, cancel := context.WithTimeout(ctx, t.timeout)
	err := t.follow(followCtx, claim)

	cancel()

	if !t.Alive && err == nil {
		t.reportf(Problem, "%s: %s", t.Reason, t.Message)
	}

	deleteCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deletionTimeout)
	defer cancel()

	t.deleteClaim(deleteCtx, claim)

	return err
}

// follow reports each phase when it ends. It returns when the guest has reported or the runner is online,
// when the machine has failed, or when the context ends.
func (t *trial) follow(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	for {
		err := t.client.Get(ctx, client.ObjectKeyFromObject(claim), claim)

		switch {
		case apierrors.IsNotFound(err):
			t.Reason, t.Message = cmp.Or(claim.Status.EndReason, "Gone"), "the claim was deleted before its machine reported"

			return nil
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("get MachineClaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}

		t.recordStatus(claim)

		if t.Alive || t.Reason != "" {
			return nil
		}

		select {
		case <-ctx.Done():
			t.recordTimeout(ctx, claim)

			return nil
		case <-time.After(pollInterval):
		}
	}
}

// recordStatus copies the status of the claim to the Trial, and reports the phases that have ended since the
// last call.
func (t *trial) recordStatus(claim *v1alpha1.MachineClaim) {
	status := &claim.Status
	if status.VMRef != nil {
		t.VM, t.Node = status.VMRef.VMID, status.VMRef.Node
	}

	for _, phase := range listPhases(claim)[len(t.Phases):] {
		t.Phases = append(t.Phases, phase)
		t.reportf(OK, "%s after %.1f s%s", phase.Name, phase.Seconds, t.formatLocation(phase))
	}

	t.Alive = isAlive(claim)

	switch stalled := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled); {
	case t.Alive:
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		t.Reason, t.Message = stalled.Reason, stalled.Message
	case status.EndReason != "":
		t.Reason, t.Message = status.EndReason, t.describeMissing(claim)
	}
}

func (t *trial) formatLocation(phase TrialPhase) string {
	if phase.Name != phasePlaced || t.VM == "" {
		return ""
	}

	return fmt.Sprintf(": VM %s on node %s", t.VM, t.Node)
}

// isAlive reports whether the guest's bootstrap service has reported or the runner is online, and the
// operator has recorded that the machine was started. A fast guest can report before that record exists.
func isAlive(claim *v1alpha1.MachineClaim) bool {
	times, info := claim.Status.Times, claim.Status.BootstrapInfo
	if times == nil || times.Started == nil {
		return false
	}

	return info != nil && info.GuestPhase != "" || times.Ready != nil
}

// Names of phases in the JSON output.
const (
	phasePlaced  = "placed"
	phaseRemoved = "removed"
)

// listPhases returns the phases that a claim has completed, in order, with the duration of each.
func listPhases(claim *v1alpha1.MachineClaim) []TrialPhase {
	times := claim.Status.Times
	if times == nil {
		return nil
	}

	reportTime, reportName := times.Ready, "runner online"
	if info := claim.Status.BootstrapInfo; info != nil && info.GuestPhase != "" && info.ReportedAt != nil &&
		(reportTime == nil || info.ReportedAt.Before(reportTime)) {
		reportTime, reportName = info.ReportedAt, "first report of the guest"
	}

	var out []TrialPhase

	last := claim.CreationTimestamp.Time

	for _, phase := range []struct {
		name string
		end  *metav1.MicroTime
	}{
		{phasePlaced, times.Placed}, {"cloned and configured", times.Cloned}, {"powered on", times.Started},
		{reportName, reportTime},
	} {
		if phase.end == nil {
			break
		}

		out = append(out, TrialPhase{Name: phase.name, Seconds: max(phase.end.Sub(last).Seconds(), 0)})
		last = phase.end.Time
	}

	return out
}

// recordTimeout records that the machine did not report before the context ended, and what it waits for.
func (t *trial) recordTimeout(ctx context.Context, claim *v1alpha1.MachineClaim) {
	t.Reason, t.Message = "Timeout", fmt.Sprintf("no report from the machine within %s: %s", t.timeout, t.describeMissing(claim))
	if errors.Is(context.Cause(ctx), context.Canceled) {
		t.Reason, t.Message = "Interrupted", "interrupted: "+t.describeMissing(claim)
	}
}

// describeMissing describes what the machine waits for, and what a person should check.
func (t *trial) describeMissing(claim *v1alpha1.MachineClaim) string {
	status := &claim.Status

	ready := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return "no operator has reconciled the claim: check that an operator is running"
	}

	text := ready.Reason + ": " + ready.Message
	if status.Times == nil || status.Times.Started == nil {
		return text
	}

	text += "; the machine was powered on, and its bootstrap service has not reported: check that the template contains the " +
		"service (bootstrap.delivery), and that the machine can reach the operator's guest.url"
	if status.NetworkInfo != nil && status.NetworkInfo.IPAddress != "" {
		return text + " from " + status.NetworkInfo.IPAddress
	}

	return text + "; its guest agent has reported no address either: check that the machine boots, and that its network has DHCP"
}

// deleteClaim deletes the claim, and waits until the claim and its machine no longer exist. It records in the
// Trial whether they were deleted.
func (t *trial) deleteClaim(ctx context.Context, claim *v1alpha1.MachineClaim) {
	start := time.Now()

	err := t.client.Delete(ctx, claim)

	for ; err == nil; err = t.client.Get(ctx, client.ObjectKeyFromObject(claim), claim) {
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}

	if apierrors.IsNotFound(err) {
		t.Removed = true
		phase := TrialPhase{Name: phaseRemoved, Seconds: time.Since(start).Seconds()}
		t.Phases = append(t.Phases, phase)
		t.reportf(OK, "%s after %.1f s", phase.Name, phase.Seconds)

		return
	}

	cause := err.Error()
	if ready := apimeta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ctx.Err() != nil && ready != nil {
		cause = ready.Reason + ": " + ready.Message
	}

	t.Reason = cmp.Or(t.Reason, "NotRemoved")
	t.Message = strings.TrimPrefix(t.Message+fmt.Sprintf("; MachineClaim %s/%s and its machine still exist after %s: %s",
		t.Namespace, t.Claim, deletionTimeout, cause), "; ")
	t.reportf(Problem, "%s", t.Message)
}

func (t *trial) reportf(level Level, format string, args ...any) {
	fmt.Fprintf(t.progress, "%-8s  %s\n", level, cli.SanitizeLine(fmt.Sprintf(format, args...)))
}
