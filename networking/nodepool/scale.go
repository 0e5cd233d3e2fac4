// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
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

	change := kubevirt.Decide(all, s.spec, int(s.pool.Spec.Replicas))
	if !change.None() {
		// The cache may lack machines that were made a moment ago.
		if all, err = s.owned(ctx, s.Live); err != nil {
			return step.Fail(err)
		}

		change = kubevirt.Decide(all, s.spec, int(s.pool.Spec.Replicas))
	}

	if err := s.carryOut(ctx, change); err != nil {
		return s.count(all, step.ForError(err, machinesRetry))
	}

	if err := s.dropTemplates(ctx, all); err != nil {
		return step.Fail(err)
	}

	if !change.None() {
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
	s.machines = kubevirt.Wanted(all)
	ready, draining := 0, 0

	for i := range all {
		if all[i].Status.Phase == v1alpha1.KubevirtMachineDraining {
			draining++
		}
	}

	for i := range s.machines {
		if s.machines[i].Status.Ready {
			ready++
		}
	}

	status := &s.pool.Status
	status.Replicas, status.ReadyReplicas = int32(len(s.machines)), int32(ready) //nolint:gosec // G115: at most 10000
	status.DrainingReplicas = int32(draining)
	status.Selector = labels.Set{v1alpha1.LabelNodePool: s.pool.Name}.String()

	return s.exhausted(result)
}

// carryOut makes and deletes machines, as many as one pass may.
func (s *scope) carryOut(ctx context.Context, c kubevirt.Change) error {
	var group errgroup.Group

	group.SetLimit(changesAtOnce)

	errs := make([]error, changesPerPass)
	done := 0

	for i := range c.Delete[:min(len(c.Delete), changesPerPass)] {
		group.Go(func() error {
			errs[i] = s.remove(ctx, &c.Delete[i])

			return nil
		})

		done++
	}

	for i := done; i < min(done+c.Create, changesPerPass); i++ {
		group.Go(func() error {
			errs[i] = s.makeMachine(ctx)

			return nil
		})
	}

	_ = group.Wait() // the errors are in the list

	return refused(errors.Join(errs...))
}

// refused gives an error that a person has to fix, such as a quota, its reason.
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
		if err := s.carryOut(ctx, kubevirt.Change{Delete: kubevirt.Wanted(all)}); err != nil {
			return step.Fail(err)
		}

		after := machinesRetry
		if len(kubevirt.Wanted(all)) > changesPerPass {
			after = goOn
		}

		return s.count(all, step.Wait(after, "MachinesLeft", "being deleted: "+english.Plural(len(all), "machine", "")))
	}

	return s.count(nil, step.Done())
}
