// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Reasons of the steps that drain and delete a Node.
const (
	reasonDraining    = "Draining"
	reasonDrained     = "Drained"
	reasonNoNode      = "NoNode"
	reasonUnreachable = "ClusterUnreachable"

	reasonNodeDeleted    = "NodeDeleted"
	reasonNodeNotDeleted = "NodeNotDeleted"

	// pollInterval is the interval in which a Node that is being drained is checked.
	pollInterval = 5 * time.Second
	// nodeDeletionTimeout is how long an object's deletion waits for the deletion of its Node.
	nodeDeletionTimeout = time.Minute
	// maxUIDLength is the maximum length of a UID that is recorded. The UID comes from an untrusted
	// cluster.
	maxUIDLength = 64
	// maxNamedPods is the maximum number of pods that a message names.
	maxNamedPods = 3
)

// ReasonTimedOut is the reason of a drain that did not complete before its timeout.
const ReasonTimedOut = "DrainTimedOut"

// Drainer drains and deletes a Node in the steps of an object, over several reconciles.
type Drainer struct {
	// Node is the name of the Node. Subject is a word for the object that the Node belongs to, such as
	// "machine".
	Node, Subject string
	// Timeout is the maximum duration of the drain.
	Timeout time.Duration
	// IsTemporary is true if the Node returns to service later ([Cluster.Uncordon]). The caller must
	// give up its operation if such a drain times out.
	IsTemporary bool
	// Status points to the status of the drain in the object's status. The status is nil before the
	// drain starts.
	Status **v1alpha1.NodeDrainStatus
	// Connect connects to the Node's cluster.
	Connect func(context.Context) (*Cluster, error)
	Clock   clock.PassiveClock
	// EmitWarning emits a warning event that names what was not drained or deleted.
	EmitWarning func(reason, message string)
}

// Reconcile continues the drain of the Node. After the timeout, the step is done even if pods
// remain or the cluster is unreachable. In this case, Reconcile emits a warning event with the
// remaining pods or the error.
func (d Drainer) Reconcile(ctx context.Context) step.Result {
	if *d.Status == nil {
		*d.Status = &v1alpha1.NodeDrainStatus{StartedAt: metav1.NewTime(d.Clock.Now())}

		// Save the start time before the drain starts. The timeout counts from this time, also after a
		// restart of the operator.
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(fmt.Errorf("save start of the drain: %w", err))
		}
	}

	record := *d.Status
	if record.EndedAt != nil {
		return step.Done().WithReason(record.Reason, record.Message)
	}

	progress, err := d.drain(ctx)
	if uid := progress.NodeUID; uid != "" && len(uid) <= maxUIDLength {
		record.NodeUID = string(uid)
	}

	remaining := d.Timeout - d.Clock.Since(record.StartedAt.Time)

	switch {
	case err == nil && progress.NodeNotFound:
		return d.finish(reasonNoNode, "Node "+d.Node+" does not exist")
	case err == nil && len(progress.RemainingPods) == 0:
		return d.finish(reasonDrained, fmt.Sprintf("Node %s is cordoned and drained", d.Node))
	case remaining <= 0:
		message := fmt.Sprintf("Node %s was not drained within %s: %s", d.Node, d.Timeout, describeProgress(progress, err))
		d.EmitWarning(ReasonTimedOut, message)

		return d.finish(ReasonTimedOut, message)
	case err != nil:
		return d.wait(remaining, err)
	default:
		return step.Wait(min(pollInterval, remaining), reasonDraining, describeProgress(progress, nil))
	}
}

func (d Drainer) drain(ctx context.Context) (Progress, error) {
	cluster, err := d.Connect(ctx)
	if err != nil {
		return Progress{}, err
	}
	defer cluster.Close()

	return cluster.Drain(ctx, d.Node, d.IsTemporary)
}

// finish records the end of the drain and returns a done result.
func (d Drainer) finish(reason, message string) step.Result {
	record, now := *d.Status, metav1.NewTime(d.Clock.Now())
	record.EndedAt, record.Reason, record.Message = &now, reason, message

	return step.Done().WithReason(reason, message)
}

// wait returns a waiting result whose message says what happens after the remaining time.
func (d Drainer) wait(remaining time.Duration, err error) step.Result {
	format := "deletion of the %s continues in %s even if the error persists: %v"
	if d.IsTemporary {
		format = "the %s returns to service in %s even if the error persists: %v"
	}

	return step.Wait(min(pollInterval, remaining), errclass.ReasonOf(err, reasonUnreachable),
		fmt.Sprintf(format, d.Subject, remaining.Round(time.Second), err))
}

// Uncordon connects to the Node's cluster and calls [Cluster.Uncordon]. It returns whether the Node is ready.
func (d Drainer) Uncordon(ctx context.Context) (isReady bool, err error) {
	cluster, err := d.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer cluster.Close()

	return cluster.Uncordon(ctx, d.Node)
}

// ShouldDeleteNode returns whether the object has a drained Node that remains after the deletion.
// The Node's cluster has no cloud provider that deletes Nodes of deleted machines. DeleteNode
// deletes only this Node and not another Node with the same name.
func (d Drainer) ShouldDeleteNode() bool { return *d.Status != nil && (*d.Status).NodeUID != "" }

// DeleteNode deletes the Node of an object whose machine is gone. goneCondition is the type of the condition that
// became True when the machine was deleted. If the Node cannot be deleted, DeleteNode retries until one minute after
// that time, and the object stays until then. It does not retry if a person has to fix the error. If the Node
// remains, DeleteNode emits a warning event.
func (d Drainer) DeleteNode(ctx context.Context, conditions []metav1.Condition, goneCondition string) step.Result {
	cluster, err := d.Connect(ctx)
	if err == nil {
		defer cluster.Close()

		err = cluster.DeleteNode(ctx, d.Node, types.UID((*d.Status).NodeUID))
	}

	if err == nil {
		return step.Done().WithReason(reasonNodeDeleted, fmt.Sprintf("Node %s is deleted", d.Node))
	}

	since := d.Clock.Now()
	if c := meta.FindStatusCondition(conditions, goneCondition); c != nil && c.Status == metav1.ConditionTrue {
		since = c.LastTransitionTime.Time
	}

	// Do not wait for a person to fix the error, because everything else is already deleted.
	if remaining := nodeDeletionTimeout - d.Clock.Since(since); remaining > 0 && errclass.ClassOf(err) != errclass.Configuration {
		return d.wait(remaining, err)
	}

	message := fmt.Sprintf("Node %s remains after its %s was deleted: delete the Node: %v", d.Node, d.Subject, err)
	d.EmitWarning(reasonNodeNotDeleted, message)

	return step.Done().WithReason(reasonNodeNotDeleted, message)
}

// describeProgress returns the error, or a text that names the remaining and the blocked pods.
func describeProgress(progress Progress, err error) string {
	if err != nil {
		return err.Error()
	}

	pods := progress.RemainingPods
	out := fmt.Sprintf("remaining: %s (%s)", english.Plural(len(pods), "pod", ""), joinFirst(pods))
	if len(progress.BlockedPods) > 0 {
		out += "; eviction refused for now: " + joinFirst(progress.BlockedPods)
	}

	return out
}

// joinFirst joins the first names of a list.
func joinFirst(names []string) string {
	if len(names) <= maxNamedPods {
		return strings.Join(names, ", ")
	}

	return strings.Join(names[:maxNamedPods], ", ") + ", ..."
}
