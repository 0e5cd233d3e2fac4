// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/drain"
)

// How a drain stands or ended.
const (
	reasonDraining         = "Draining"
	reasonDrained          = "Drained"
	reasonNoNode           = "NoNode"
	reasonDrainTimedOut    = "DrainTimedOut"
	reasonGuestUnreachable = "ClusterUnreachable"

	// How the Node's end stands or ended.
	reasonNodeDeleted = "NodeDeleted"
	reasonNodeLeft    = "NodeLeft"

	// nodeTimeout bounds what a machine that is gone is kept for its Node's sake.
	nodeTimeout = time.Minute
	// maxUID bounds what is kept of another cluster's word.
	maxUID = 64

	// namedPods bounds the pods that a message names.
	namedPods = 3
)

// drains says whether the machine's Node is drained before the machine goes: its pool says how,
// and stays. Where the pool goes as well nobody is left to take the work. A machine that has
// never run is no Node.
func drains(s *scope) bool {
	return s.pool != nil && s.pool.Spec.Drain != nil && s.pool.DeletionTimestamp.IsZero() && s.machine.Status.NodeName != ""
}

// lookForPool reads the pool of a machine that is being deleted.
func (s *scope) lookForPool(ctx context.Context) error {
	name := s.machine.Labels[v1alpha1.LabelNodePool]
	if s.machine.DeletionTimestamp.IsZero() || name == "" {
		return nil
	}

	pool := &v1alpha1.KubevirtNodePool{}

	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.machine.Namespace, Name: name}, pool)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("get node pool: %w", err)
	}

	s.pool = pool

	return nil
}

// drained takes the work off the machine's Node, for as long as the pool allows. Whatever is in
// the way, the machine goes when that time is over, and an event says what was left.
func drained(ctx context.Context, s *scope) step.Result {
	status := &s.machine.Status
	if status.Drain != nil && status.Drain.EndedAt != nil {
		return step.Done().WithReason(status.Drain.Reason, status.Drain.Message)
	}

	status.Phase, status.Ready = v1alpha1.KubevirtMachineDraining, false

	if status.Drain == nil {
		status.Drain = &v1alpha1.KubevirtMachineDrain{StartedAt: metav1.NewTime(s.Clock.Now())}

		// Before anything is done: its end is counted from here, whoever goes on with it.
		if err := step.Save(ctx); err != nil {
			return step.Fail(fmt.Errorf("save the beginning of the drain: %w", err))
		}
	}

	progress, err := s.drain(ctx)
	if uid := progress.Node; uid != "" && len(uid) <= maxUID {
		status.Drain.NodeUID = string(uid)
	}

	over := s.Clock.Now()
	limit := s.pool.Spec.Drain.Timeout.Duration
	remaining := limit - over.Sub(status.Drain.StartedAt.Time)

	end := func(reason, message string) step.Result {
		at := metav1.NewTime(over)
		status.Drain.EndedAt, status.Drain.Reason, status.Drain.Message = &at, reason, message

		return step.Done().WithReason(reason, message)
	}

	switch {
	case err == nil && progress.NoNode:
		return end(reasonNoNode, "there is no Node "+s.machine.Name)
	case err == nil && len(progress.Left) == 0:
		return end(reasonDrained, fmt.Sprintf("Node %s is cordoned, and nothing is left on it", s.machine.Name))
	case remaining <= 0:
		message := fmt.Sprintf("Node %s was not drained within %s: %s", s.machine.Name, limit, standing(progress, err))
		s.Recorder.Eventf(s.pool, s.machine, corev1.EventTypeWarning, reasonDrainTimedOut, "Drain", "%s", message)

		return end(reasonDrainTimedOut, message)
	case err != nil:
		return step.Wait(min(lookAgain, remaining), errclass.Reason(err, reasonGuestUnreachable),
			fmt.Sprintf("the machine goes in %s all the same: %v", remaining.Round(time.Second), err))
	default:
		return step.Wait(min(lookAgain, remaining), reasonDraining, standing(progress, nil))
	}
}

// drain does what can be done now.
func (s *scope) drain(ctx context.Context) (drain.Progress, error) {
	cluster, err := s.cluster(ctx)
	if err != nil {
		return drain.Progress{}, err
	}
	defer cluster.Close()

	return cluster.Drain(ctx, s.machine.Name) //nolint:wrapcheck // it says what was done
}

// cluster is the one that the machine is a Node of.
func (s *scope) cluster(ctx context.Context) (*drain.Cluster, error) {
	ref := s.pool.Spec.Drain.KubeconfigSecretRef
	key := client.ObjectKey{Namespace: s.machine.Namespace, Name: ref.Name}

	data, err := credential.ReadKubeconfig(ctx, s.Live, key, ref.Key)
	if err != nil {
		return nil, fmt.Errorf("read the pool's drain.kubeconfigSecretRef: %w", err)
	}

	return drain.Open(data) //nolint:wrapcheck // it says what was done
}

// leavesNode says whether a Node is left of the machine that nobody else removes: the cluster
// has no cloud that knows of machines. It is that which was drained, and no other of its name.
func leavesNode(s *scope) bool {
	return drains(s) && s.machine.Status.Drain != nil && s.machine.Status.Drain.NodeUID != ""
}

// nodeGone deletes the Node of the machine that is gone. Whatever is in the way, the machine's
// end waits a minute for it at most, and an event says that the Node is left.
func nodeGone(ctx context.Context, s *scope) step.Result {
	name, since, now := s.machine.Name, s.Clock.Now(), s.Clock.Now()

	cluster, err := s.cluster(ctx)
	if err == nil {
		defer cluster.Close()

		err = cluster.Forget(ctx, name, types.UID(s.machine.Status.Drain.NodeUID))
	}

	if err == nil {
		return step.Done().WithReason(reasonNodeDeleted, fmt.Sprintf("Node %s is deleted", name))
	}

	if gone := meta.FindStatusCondition(s.machine.Status.Conditions, v1alpha1.ConditionVMDeleted); gone != nil &&
		gone.Status == metav1.ConditionTrue {
		since = gone.LastTransitionTime.Time
	}

	// What a person has to change is not waited for: the machine is gone, and its addresses with it.
	if left := nodeTimeout - now.Sub(since); left > 0 && errclass.Of(err) != errclass.Configuration {
		return step.Wait(min(lookAgain, left), errclass.Reason(err, reasonGuestUnreachable),
			fmt.Sprintf("the machine goes in %s all the same: %v", left.Round(time.Second), err))
	}

	message := fmt.Sprintf("Node %s is left, whose machine is gone: delete it: %v", name, err)
	s.Recorder.Eventf(s.pool, s.machine, corev1.EventTypeWarning, reasonNodeLeft, "Drain", "%s", message)

	return step.Done().WithReason(reasonNodeLeft, message)
}

// standing says what is left.
func standing(progress drain.Progress, err error) string {
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
