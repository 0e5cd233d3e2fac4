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

// How a drain stands or ended.
const (
	reasonDraining    = "Draining"
	reasonDrained     = "Drained"
	reasonNoNode      = "NoNode"
	reasonUnreachable = "ClusterUnreachable"

	// How the Node's end stands or ended.
	reasonNodeDeleted = "NodeDeleted"
	reasonNodeLeft    = "NodeLeft"

	// lookAgain is how soon a Node that is being drained is looked at.
	lookAgain = 5 * time.Second
	// nodeTimeout bounds what an object is kept for its Node's sake.
	nodeTimeout = time.Minute
	// maxUID bounds what is kept of another cluster's word.
	maxUID = 64
	// namedPods bounds the pods that a message names.
	namedPods = 3
)

// ReasonTimedOut is that of a drain whose time was over.
const ReasonTimedOut = "DrainTimedOut"

// Order is a drain as a deletion's steps make it, pass by pass.
type Order struct {
	// Node by name, and Thing is what it is of, in a word: "machine".
	Node, Thing string
	// Limit is how long the drain may take.
	Limit time.Duration
	// ComesBack says that the Node is drained for a while ([Cluster.Return]), and not for good:
	// what is not drained in time is given up.
	ComesBack bool
	// Record is what the object's status says of the drain; nil there before it begins.
	Record **v1alpha1.NodeDrainStatus
	// Open connects to the Node's cluster.
	Open  func(context.Context) (*Cluster, error)
	Clock clock.PassiveClock
	// Warn tells an event of what was left.
	Warn func(reason, message string)
}

// Pass takes the work off the Node, for as long as the order allows. Whatever is in the way, the
// step is done when that time is over, and an event says what was left.
func (o Order) Pass(ctx context.Context) step.Result {
	if *o.Record == nil {
		*o.Record = &v1alpha1.NodeDrainStatus{StartedAt: metav1.NewTime(o.Clock.Now())}

		// Before anything is done: its end is counted from here, whoever goes on with it.
		if err := step.Save(ctx); err != nil {
			return step.Fail(fmt.Errorf("save the beginning of the drain: %w", err))
		}
	}

	record := *o.Record
	if record.EndedAt != nil {
		return step.Done().WithReason(record.Reason, record.Message)
	}

	progress, err := o.drain(ctx)
	if uid := progress.Node; uid != "" && len(uid) <= maxUID {
		record.NodeUID = string(uid)
	}

	remaining := o.Limit - o.Clock.Since(record.StartedAt.Time)

	switch {
	case err == nil && progress.NoNode:
		return o.end(reasonNoNode, "there is no Node "+o.Node)
	case err == nil && len(progress.Left) == 0:
		return o.end(reasonDrained, fmt.Sprintf("Node %s is cordoned, and nothing is left on it", o.Node))
	case remaining <= 0:
		message := fmt.Sprintf("Node %s was not drained within %s: %s", o.Node, o.Limit, standing(progress, err))
		o.Warn(ReasonTimedOut, message)

		return o.end(ReasonTimedOut, message)
	case err != nil:
		return o.wait(remaining, err)
	default:
		return step.Wait(min(lookAgain, remaining), reasonDraining, standing(progress, nil))
	}
}

func (o Order) drain(ctx context.Context) (Progress, error) {
	cluster, err := o.Open(ctx)
	if err != nil {
		return Progress{}, err
	}
	defer cluster.Close()

	return cluster.Drain(ctx, o.Node, o.ComesBack)
}

func (o Order) end(reason, message string) step.Result {
	record, at := *o.Record, metav1.NewTime(o.Clock.Now())
	record.EndedAt, record.Reason, record.Message = &at, reason, message

	return step.Done().WithReason(reason, message)
}

func (o Order) wait(remaining time.Duration, err error) step.Result {
	words := "the %s goes in %s all the same: %v"
	if o.ComesBack {
		words = "the %s is left as it is in %s: %v"
	}

	return step.Wait(min(lookAgain, remaining), errclass.Reason(err, reasonUnreachable),
		fmt.Sprintf(words, o.Thing, remaining.Round(time.Second), err))
}

// Return puts the Node in service again, and says whether it is ready.
func (o Order) Return(ctx context.Context) (bool, error) {
	cluster, err := o.Open(ctx)
	if err != nil {
		return false, err
	}
	defer cluster.Close()

	return cluster.Return(ctx, o.Node)
}

// LeavesNode says whether a Node is left of what is gone that nobody else removes: the cluster
// has no cloud that knows of it. It is that which was drained, and no other of its name.
func (o Order) LeavesNode() bool { return *o.Record != nil && (*o.Record).NodeUID != "" }

// Forget deletes the Node of what is gone since the named condition became True. Whatever is in
// the way, the object's end waits a minute for it at most, and an event says that the Node is
// left.
func (o Order) Forget(ctx context.Context, conditions []metav1.Condition, gone string) step.Result {
	cluster, err := o.Open(ctx)
	if err == nil {
		defer cluster.Close()

		err = cluster.Forget(ctx, o.Node, types.UID((*o.Record).NodeUID))
	}

	if err == nil {
		return step.Done().WithReason(reasonNodeDeleted, fmt.Sprintf("Node %s is deleted", o.Node))
	}

	since := o.Clock.Now()
	if c := meta.FindStatusCondition(conditions, gone); c != nil && c.Status == metav1.ConditionTrue {
		since = c.LastTransitionTime.Time
	}

	// What a person has to change is not waited for: all else is gone.
	if left := nodeTimeout - o.Clock.Since(since); left > 0 && errclass.Of(err) != errclass.Configuration {
		return o.wait(left, err)
	}

	message := fmt.Sprintf("Node %s is left, whose %s is gone: delete it: %v", o.Node, o.Thing, err)
	o.Warn(reasonNodeLeft, message)

	return step.Done().WithReason(reasonNodeLeft, message)
}

// standing says what is left.
func standing(progress Progress, err error) string {
	if err != nil {
		return err.Error()
	}

	out := fmt.Sprintf("left: %s (%s)", english.Plural(len(progress.Left), "pod", ""), some(progress.Left))
	if len(progress.Kept) > 0 {
		out += "; eviction refused for now: " + some(progress.Kept)
	}

	return out
}

// some are the first names of a list.
func some(names []string) string {
	if len(names) <= namedPods {
		return strings.Join(names, ", ")
	}

	return strings.Join(names[:namedPods], ", ") + ", ..."
}
