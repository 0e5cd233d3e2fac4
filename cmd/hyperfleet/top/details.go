// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// loadDetails returns the lines of the details of an object of a list.
func (w *watcher) loadDetails(ctx context.Context, list int, key client.ObjectKey) []string {
	var (
		pool  v1alpha1.RunnerPool
		claim v1alpha1.MachineClaim
		out   bytes.Buffer
		err   error
	)

	switch list {
	case listPools:
		if err = w.view.Get(ctx, key, &pool); err == nil {
			return formatPool(live.NewPool(&pool))
		}
	case listMachines:
		if err = w.view.Get(ctx, key, &claim); err == nil {
			return formatMachine(&claim)
		}
	default:
		var details jobs.Details
		if details, err = jobs.LoadDetails(ctx, w.view, w.view.APIClient, key, w.clock.Now()); err == nil {
			jobs.WriteDetails(&out, details, time.Local) //nolint:gosmopolitan // times are in the user's time zone

			return splitLines(out.String())
		}
	}

	return formatError(key, err)
}

// loadLog returns the lines of the log of a job, or of the job of a machine. If there is no log, the lines say why.
func (w *watcher) loadLog(ctx context.Context, list int, key client.ObjectKey) []string {
	switch list {
	case listPools:
		return []string{
			"Pool        " + key.String(), "",
			"No log: a pool has no log. Press Enter for its conditions and its last failure, or 3 and l for the log of a job.",
		}
	case listMachines:
		var claim v1alpha1.MachineClaim
		if err := w.view.Get(ctx, key, &claim); err != nil {
			return formatError(key, err)
		}

		job := live.MachineJob(&claim)
		if job == "" {
			return []string{
				"Machine     " + key.String(), "",
				"No log: the machine has no job yet. It sends the log of its runner with its last report.",
			}
		}

		key.Name = job
	}

	details, err := jobs.LoadDetails(ctx, w.view, w.view.APIClient, key, w.clock.Now())
	if err != nil {
		return formatError(key, err)
	}

	var out bytes.Buffer

	jobs.WriteLog(&out, details)

	return append([]string{"Job         " + key.String() + "  " + cli.SanitizeLine(details.Name)}, splitLines(out.String())...)
}

func splitLines(text string) []string {
	return strings.Split(strings.TrimRight(strings.ReplaceAll(text, "\t", "    "), "\n"), "\n")
}

func formatError(key client.ObjectKey, err error) []string {
	if apierrors.IsNotFound(err) {
		return []string{key.String() + " was deleted."}
	}

	return []string{cli.SanitizeLine(err.Error())}
}

// formatConditions returns a line with type, status and reason for each condition, and a line with its
// message.
func formatConditions(conditions []metav1.Condition) []string {
	var out []string

	for _, c := range conditions {
		out = append(out, fmt.Sprintf("  %-18s %-8s %s", c.Type, c.Status, formatCause(c.Reason, "")))
		if c.Message != "" {
			out = append(out, "    "+cli.SanitizeLine(c.Message))
		}
	}

	return out
}

// formatPool returns the lines of the details of a pool.
func formatPool(p live.Pool) []string {
	out := []string{
		"Pool        " + p.Namespace + "/" + p.Name,
		fmt.Sprintf("Jobs        %d queued, %d running", p.Status.QueuedJobs, p.Status.RunningJobs),
		fmt.Sprintf("Machines    %d busy, %d idle, %d starting, %d on standby; %d desired (min %d, max %d)",
			p.Status.BusyReplicas, p.Idle(), p.Starting(), p.Status.StandbyReplicas,
			p.Status.DesiredReplicas, p.Spec.Scaling.MinReplicas, p.Spec.Scaling.MaxReplicas),
	}

	if p.Spec.Paused {
		out = append(out, "Paused      yes")
	}

	if f := p.Status.LastFailure; f != nil {
		name := "Last failure of " + f.Claim
		if f.Node != "" {
			name += " on node " + f.Node
		}

		out = append(out, name, "  "+cli.SanitizeLine(f.Reason+": "+f.Message))
	}

	return append(append(out, "", "Conditions:"), formatConditions(p.Status.Conditions)...)
}

// formatMachine returns the lines of the details of a machine.
func formatMachine(claim *v1alpha1.MachineClaim) []string {
	out := []string{"Machine     " + claim.Namespace + "/" + cli.SanitizeLine(jobs.DescribeMachine(jobs.NewVM(claim)))}

	if info := claim.Status.BootstrapInfo; info != nil {
		out = append(
			out,
			"Runner      "+info.RunnerName,
			"Job         "+info.Job,
			"Guest       "+cli.SanitizeLine(info.GuestPhase+" "+info.GuestMessage),
		)
	}

	if b := claim.Status.Backoff; b != nil {
		out = append(
			out,
			fmt.Sprintf("%s failed %d times in a row; the next attempt is at %s", b.Step, b.Failures, b.Until.Format(time.TimeOnly)),
		)
	}

	return append(append(out, "", "Conditions:"), formatConditions(claim.Status.Conditions)...)
}
