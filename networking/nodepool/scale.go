// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// changesPerPass bounds the machines that one pass makes or deletes, changesAtOnce
	// those under way.
	changesPerPass = 100
	changesAtOnce  = 8
	// goOn is how soon the next pass makes or deletes more.
	goOn = 50 * time.Millisecond
	// machinesRetry is how soon machines that are going are looked at without an event.
	machinesRetry = time.Minute
)

// scaled makes machines that are missing and deletes those that are too many.
func scaled(ctx context.Context, s *scope) step.Result {
	all, err := s.owned(ctx, s.Client)
	if err != nil {
		return step.Fail(err)
	}

	change := decide(all, s.spec, int(s.pool.Spec.Replicas))
	if !change.none() {
		// The cache may lack machines that were made a moment ago.
		if all, err = s.owned(ctx, s.Live); err != nil {
			return step.Fail(err)
		}

		change = decide(all, s.spec, int(s.pool.Spec.Replicas))
	}

	if err := s.carryOut(ctx, change); err != nil {
		return s.count(all, step.ForError(err, machinesRetry))
	}

	if err := s.dropTemplates(ctx, all); err != nil {
		return step.Fail(err)
	}

	if !change.none() {
		return s.count(all, step.Wait(goOn, "Scaling", change.String()))
	}

	return s.count(all, step.Done())
}

// owned are the pool's machines.
func (s *scope) owned(ctx context.Context, from client.Reader) ([]v1alpha1.KubevirtMachine, error) {
	var machines v1alpha1.KubevirtMachineList

	err := from.List(ctx, &machines, client.InNamespace(s.pool.Namespace),
		client.MatchingLabels{v1alpha1.LabelNodePool: s.pool.Name})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}

	return slices.DeleteFunc(machines.Items, func(m v1alpha1.KubevirtMachine) bool {
		return !metav1.IsControlledBy(&m, s.pool)
	}), nil
}

// count notes how the pool stands.
func (s *scope) count(all []v1alpha1.KubevirtMachine, result step.Result) step.Result {
	s.machines = wanted(all)
	ready := 0

	for i := range s.machines {
		if s.machines[i].Status.Ready {
			ready++
		}
	}

	status := &s.pool.Status
	status.Replicas, status.ReadyReplicas = int32(len(s.machines)), int32(ready) //nolint:gosec // G115: at most 10000
	status.Selector = labels.Set{v1alpha1.LabelNodePool: s.pool.Name}.String()

	return s.exhausted(result)
}

// change is what is to be done about a pool's machines.
type change struct {
	create int
	delete []v1alpha1.KubevirtMachine
}

func (c change) none() bool { return c.create == 0 && len(c.delete) == 0 }

// String is for the condition.
func (c change) String() string {
	return fmt.Sprintf("%d machines are made, %d are deleted", c.create, len(c.delete))
}

// wanted are the machines that are not being deleted.
func wanted(all []v1alpha1.KubevirtMachine) []v1alpha1.KubevirtMachine {
	out := make([]v1alpha1.KubevirtMachine, 0, len(all))

	for i := range all {
		if all[i].DeletionTimestamp == nil {
			out = append(out, all[i])
		}
	}

	return out
}

// decide compares the machines that there are with those that there should be.
func decide(all []v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec, replicas int) change {
	var (
		out  change
		keep []v1alpha1.KubevirtMachine
	)

	for _, m := range wanted(all) {
		if outdated(&m, spec) {
			out.delete = append(out.delete, m)
		} else {
			keep = append(keep, m)
		}
	}

	if surplus := len(keep) - replicas; surplus > 0 {
		slices.SortStableFunc(keep, goesBefore)
		out.delete = append(out.delete, keep[:surplus]...)
	}

	out.create = max(0, replicas-len(keep))

	return out
}

// outdated says of a machine that has nothing yet that the pool would now make it
// otherwise. Other subnets are no reason: addresses come from the pool as it is now.
func outdated(m *v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec) bool {
	have, want := m.Spec.BootstrapNetworkConfig, spec.BootstrapNetworkConfig
	if have == nil || len(m.Status.AllocatedBootstrapAddresses) > 0 || m.Status.Ready || progress(m) > 0 {
		return false
	}

	if want == nil || have.NetworkName != want.NetworkName {
		return true
	}

	return have.NetworkData != nil && want.NetworkData != nil && *have.NetworkData != *want.NetworkData
}

// goesBefore orders machines by which is deleted first.
func goesBefore(x, y v1alpha1.KubevirtMachine) int {
	return cmp.Or(
		cmp.Compare(progress(&x), progress(&y)),
		x.CreationTimestamp.Compare(y.CreationTimestamp.Time),
		strings.Compare(x.Name, y.Name),
	)
}

// progress is how far a machine has come: nothing yet, a VirtualMachine, ready.
func progress(m *v1alpha1.KubevirtMachine) int {
	switch {
	case m.Status.Ready:
		return 2
	case m.Status.Phase == "" || m.Status.Phase == v1alpha1.KubevirtMachinePending:
		return 0
	default:
		return 1
	}
}

// carryOut makes and deletes machines, as many as one pass may.
func (s *scope) carryOut(ctx context.Context, c change) error {
	var group errgroup.Group

	group.SetLimit(changesAtOnce)

	errs := make([]error, changesPerPass)
	done := 0

	for i := range c.delete[:min(len(c.delete), changesPerPass)] {
		group.Go(func() error {
			errs[i] = s.remove(ctx, &c.delete[i])

			return nil
		})

		done++
	}

	for i := done; i < min(done+c.create, changesPerPass); i++ {
		group.Go(func() error {
			errs[i] = s.makeMachine(ctx)

			return nil
		})
	}

	_ = group.Wait() // the errors are in the list

	return refused(errors.Join(errs...))
}

// refused gives an error that a person has to mend, such as a quota, its reason.
func refused(err error) error {
	if apierrors.IsForbidden(err) {
		return errclass.Wrap(errclass.Resource, "Forbidden", err)
	}

	return err
}

func (s *scope) makeMachine(ctx context.Context) error {
	meta := s.meta("")
	meta.GenerateName = s.pool.Name + "-"
	meta.Annotations = map[string]string{v1alpha1.AnnotationMachineTemplate: s.template}
	// From the start, so that no machine gets addresses without it.
	meta.Finalizers = []string{v1alpha1.FinalizerKubevirtMachine}

	machine := &v1alpha1.KubevirtMachine{ObjectMeta: meta, Spec: s.spec}
	if err := s.Client.Create(ctx, machine); err != nil {
		return fmt.Errorf("create machine: %w", err)
	}

	return nil
}

// remove deletes a machine, unless it was made anew in the meantime.
func (s *scope) remove(ctx context.Context, m *v1alpha1.KubevirtMachine) error {
	uid := m.UID
	if err := client.IgnoreNotFound(s.Client.Delete(ctx, m, client.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("delete machine %s: %w", m.Name, err)
	}

	s.Recorder.Eventf(s.pool, m, corev1.EventTypeNormal, "MachineDeleted", "Scale", "%s", m.Name)

	return nil
}

// machinesReady waits for the machines.
func machinesReady(_ context.Context, s *scope) step.Result {
	status := s.pool.Status
	if status.ReadyReplicas < s.pool.Spec.Replicas {
		return s.exhausted(step.Wait(0, "MachinesNotReady", fmt.Sprintf("%d of %d machines are ready",
			status.ReadyReplicas, s.pool.Spec.Replicas)))
	}

	return s.exhausted(step.Done())
}

// machinesDeleted deletes the pool's machines and waits until they are gone.
func machinesDeleted(ctx context.Context, s *scope) step.Result {
	all, err := s.owned(ctx, s.Live)
	if err != nil {
		return step.Fail(err)
	}

	if len(all) > 0 {
		if err := s.carryOut(ctx, change{delete: wanted(all)}); err != nil {
			return step.Fail(err)
		}

		after := machinesRetry
		if len(wanted(all)) > changesPerPass {
			after = goOn
		}

		return s.count(all, step.Wait(after, "MachinesLeft", fmt.Sprintf("%d machines are being deleted", len(all))))
	}

	return s.count(nil, step.Done())
}
