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
	// defaultTry is how long a machine may take to its first sign of life: as long as the
	// operator waits for it, and time to make it.
	defaultTry = 20 * time.Minute
	// removal is how long it may take to be gone.
	removal = 5 * time.Minute
	// glance lies between two looks at the claim.
	glance = 500 * time.Millisecond
	// tryPrefix begins the names of trial claims, and of the label that no job asks for.
	tryPrefix = "doctor-"
)

// Trial is what became of a machine that was made to try a template, in JSON output. Fields
// are only ever added.
type Trial struct {
	Namespace string `json:"namespace"`
	Template  string `json:"template"`
	// Claim is the name of the MachineClaim, VM and Node those of its machine.
	Claim string `json:"claim,omitempty"`
	VM    string `json:"vm,omitempty"`
	Node  string `json:"node,omitempty"`
	// Phases that it came through, in order.
	Phases []TrialPhase `json:"phases"`
	// Alive says that the guest gave a sign of life, Removed that nothing is left.
	Alive   bool `json:"alive"`
	Removed bool `json:"removed"`
	// Reason and Message say what was missing.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// TrialPhase is a part of a machine's way, and how long it took.
type TrialPhase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// trial makes a machine and follows it.
type trial struct {
	client client.Client
	// told gets each line as it comes; nobody reads it where output is for programs.
	told io.Writer
	// timeout bounds the way to the first sign of life.
	timeout time.Duration

	Trial
}

// prepare makes the claim: from the template, with the workload of a pool of it, so that the
// machine gets its credential as that pool's do.
func (t *trial) prepare(ctx context.Context) (*v1alpha1.MachineClaim, *v1alpha1.HypervisorMachineTemplate, error) {
	template := &v1alpha1.HypervisorMachineTemplate{}
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Template}, template); err != nil {
		return nil, nil, fmt.Errorf("get template %s/%s: %w", t.Namespace, t.Template, err)
	}

	pools := &v1alpha1.RunnerPoolList{}
	if err := t.client.List(ctx, pools, client.InNamespace(t.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list pools of namespace %s: %w", t.Namespace, err)
	}

	at := slices.IndexFunc(pools.Items, func(p v1alpha1.RunnerPool) bool { return p.Spec.TemplateRef.Name == t.Template })
	if at < 0 {
		return nil, nil, fmt.Errorf("no RunnerPool of namespace %s uses template %s: make one, it says what CI platform "+
			"the machine registers with (with scaling.maxReplicas: 0 it makes no machine of its own)", t.Namespace, t.Template)
	}

	name := tryPrefix + rand.String(8) //nolint:mnd // long enough for no two to meet

	work, err := idle(pools.Items[at].Spec.Workload, name)
	if err != nil {
		return nil, nil, fmt.Errorf("pool %s: %w", pools.Items[at].Name, err)
	}

	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: t.Template}, WorkloadConfig: *work,
			// Whatever becomes of this program, the machine ends.
			Lifecycle: &v1alpha1.Lifecycle{
				MaxLifetime: &metav1.Duration{Duration: t.timeout + removal}, BootstrapTimeout: &metav1.Duration{Duration: t.timeout},
			},
		},
	}, template, nil
}

// idle is the workload of a runner that takes no job of anybody: it asks for a label that no
// job has.
func idle(of v1alpha1.Workload, label string) (*v1alpha1.Workload, error) {
	work := of.DeepCopy()
	work.Webhook = nil

	switch {
	case work.Type == v1alpha1.WorkloadGitHubActions:
		if work.Config == nil {
			work.Config = &v1alpha1.WorkloadConfig{}
		}

		if work.Config.GitHub == nil {
			work.Config.GitHub = &v1alpha1.GitHubActionsConfig{}
		}

		github := work.Config.GitHub
		github.Labels, github.ScaleSet, github.RunnerName = []string{label}, "", ""
	case work.Type == v1alpha1.WorkloadGitLabCI && work.Config != nil && work.Config.GitLab != nil:
		work.Config.GitLab.Tags, work.Config.GitLab.RunUntagged = []string{label}, false
	default:
		return nil, fmt.Errorf("a machine of %s is made for one job: queue a job, and follow it with: hyperfleet job ID", work.Type)
	}

	return work, nil
}

// question is what is asked before anything is made.
func question(claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate) string {
	return fmt.Sprintf("Make one machine (%d CPUs, %s memory) from template %s/%s on HypervisorCluster %s, with a runner on %s, "+
		"and remove both?", template.Spec.Resources.CPU, template.Spec.Resources.Memory.String(), template.Namespace,
		template.Name, template.Spec.HypervisorClusterRef.Name, claim.Spec.WorkloadConfig.Type)
}

// errDeclined is an answer that is not yes.
var errDeclined = errors.New("nothing was made: answer y, or give --yes")

// ask wants a yes.
func ask(in io.Reader, out io.Writer, question string) error {
	fmt.Fprintf(out, "%s [y/N] ", cli.Line(question))

	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}

	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		fmt.Fprintln(out)

		return errDeclined
	}

	return nil
}

// run makes the machine, follows it and removes it, also after an interrupt. An error is one
// of this program or of the API server; what is wrong with the machine is in the Trial.
func (t *trial) run(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	if err := t.client.Create(ctx, claim); err != nil {
		return fmt.Errorf("make MachineClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}

	t.Claim = claim.Name
	t.sayf(Fine, "MachineClaim %s/%s from template %s", t.Namespace, t.Claim, t.Template)

	following, cancel := context.WithTimeout(ctx, t.timeout)
	err := t.follow(following, claim)

	cancel()

	if !t.Alive && err == nil {
		t.sayf(Problem, "%s: %s", t.Reason, t.Message)
	}

	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()

	t.remove(removing, claim)

	return err
}

// follow tells of each phase as it ends, until the guest gives a sign of life or it is known
// that it will not.
func (t *trial) follow(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	for {
		err := t.client.Get(ctx, client.ObjectKeyFromObject(claim), claim)

		switch {
		case apierrors.IsNotFound(err):
			t.Reason, t.Message = cmp.Or(claim.Status.EndReason, "Gone"), "the claim was deleted before its machine gave a sign of life"

			return nil
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("get MachineClaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}

		t.see(claim)

		if t.Alive || t.Reason != "" {
			return nil
		}

		select {
		case <-ctx.Done():
			t.late(ctx, claim)

			return nil
		case <-time.After(glance):
		}
	}
}

// see takes over what a claim's status says.
func (t *trial) see(claim *v1alpha1.MachineClaim) {
	status := &claim.Status
	if status.VMRef != nil {
		t.VM, t.Node = status.VMRef.VMID, status.VMRef.Node
	}

	for _, phase := range phasesOf(claim)[len(t.Phases):] {
		t.Phases = append(t.Phases, phase)
		t.sayf(Fine, "%s after %.1f s%s", phase.Name, phase.Seconds, t.where(phase))
	}

	t.Alive = alive(claim)

	switch stalled := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled); {
	case t.Alive:
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		t.Reason, t.Message = stalled.Reason, stalled.Message
	case status.EndReason != "":
		t.Reason, t.Message = status.EndReason, t.missing(claim)
	}
}

func (t *trial) where(phase TrialPhase) string {
	if phase.Name != phasePlaced || t.VM == "" {
		return ""
	}

	return fmt.Sprintf(": VM %s on node %s", t.VM, t.Node)
}

// alive says whether the guest has given a sign of life, a report of its bootstrap service or
// its runner, and the operator knows that the machine runs: a quick guest is heard before.
func alive(claim *v1alpha1.MachineClaim) bool {
	times, info := claim.Status.Times, claim.Status.BootstrapInfo
	if times == nil || times.Started == nil {
		return false
	}

	return info != nil && info.GuestPhase != "" || times.Ready != nil
}

// Names of phases.
const (
	phasePlaced  = "placed"
	phaseRemoved = "removed"
)

// phasesOf are the phases that a claim has come through, one after the other.
func phasesOf(claim *v1alpha1.MachineClaim) []TrialPhase {
	times := claim.Status.Times
	if times == nil {
		return nil
	}

	sign, what := times.Ready, "runner online"
	if info := claim.Status.BootstrapInfo; info != nil && info.GuestPhase != "" && info.ReportedAt != nil &&
		(sign == nil || info.ReportedAt.Before(sign)) {
		sign, what = info.ReportedAt, "first report of the guest"
	}

	var out []TrialPhase

	last := claim.CreationTimestamp.Time

	for _, moment := range []struct {
		name string
		at   *metav1.MicroTime
	}{
		{phasePlaced, times.Placed}, {"cloned and configured", times.Cloned}, {"powered on", times.Started}, {what, sign},
	} {
		if moment.at == nil {
			break
		}

		out = append(out, TrialPhase{Name: moment.name, Seconds: max(moment.at.Sub(last).Seconds(), 0)})
		last = moment.at.Time
	}

	return out
}

// late says what was missing when the time was over.
func (t *trial) late(ctx context.Context, claim *v1alpha1.MachineClaim) {
	t.Reason, t.Message = "Timeout", fmt.Sprintf("no sign of life within %s: %s", t.timeout, t.missing(claim))
	if errors.Is(context.Cause(ctx), context.Canceled) {
		t.Reason, t.Message = "Interrupted", "interrupted: "+t.missing(claim)
	}
}

// missing says what the machine waits for, and where to look.
func (t *trial) missing(claim *v1alpha1.MachineClaim) string {
	status := &claim.Status

	ready := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return "no operator has looked at the claim: is one running?"
	}

	words := ready.Reason + ": " + ready.Message
	if status.Times == nil || status.Times.Started == nil {
		return words
	}

	words += "; the machine was powered on, and its bootstrap service has not reported: is it in the template " +
		"(bootstrap.delivery), and does the machine reach the operator's guest.url"
	if status.NetworkInfo != nil && status.NetworkInfo.IPAddress != "" {
		return words + " from " + status.NetworkInfo.IPAddress + "?"
	}

	return words + "? Its guest agent has told no address either: does it boot, and is there DHCP on its network?"
}

// remove deletes the claim and waits until it is gone, and its machine with it.
func (t *trial) remove(ctx context.Context, claim *v1alpha1.MachineClaim) {
	begun := time.Now()

	err := t.client.Delete(ctx, claim)

	for ; err == nil; err = t.client.Get(ctx, client.ObjectKeyFromObject(claim), claim) {
		select {
		case <-ctx.Done():
		case <-time.After(glance):
		}
	}

	if apierrors.IsNotFound(err) {
		t.Removed = true
		phase := TrialPhase{Name: phaseRemoved, Seconds: time.Since(begun).Seconds()}
		t.Phases = append(t.Phases, phase)
		t.sayf(Fine, "%s after %.1f s", phase.Name, phase.Seconds)

		return
	}

	why := err.Error()
	if ready := apimeta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionReady); ctx.Err() != nil && ready != nil {
		why = ready.Reason + ": " + ready.Message
	}

	t.Reason = cmp.Or(t.Reason, "NotRemoved")
	t.Message = strings.TrimPrefix(t.Message+fmt.Sprintf("; MachineClaim %s/%s and its machine are not gone after %s: %s",
		t.Namespace, t.Claim, removal, why), "; ")
	t.sayf(Problem, "%s", t.Message)
}

func (t *trial) sayf(level Level, format string, args ...any) {
	fmt.Fprintf(t.told, "%-8s  %s\n", level, cli.Line(fmt.Sprintf(format, args...)))
}
