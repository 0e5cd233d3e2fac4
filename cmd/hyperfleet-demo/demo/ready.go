// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// readyTimeout is the timeout for cluster, template and pool to become Ready.
	readyTimeout = time.Minute
	// pollInterval is the polling interval before the jobs start and after they have finished.
	pollInterval = 100 * time.Millisecond
	// jobsInterval is the polling interval while jobs run. It is longer than pollInterval to leave CPU time
	// to the measured processes. The measured job times come from the simulator and do not depend on this
	// interval.
	jobsInterval = 300 * time.Millisecond
)

// conditionedObject is an object with conditions.
type conditionedObject interface {
	client.Object
	StatusConditions() *[]metav1.Condition
}

// waitForReady waits until cluster, template and pool are Ready.
func (s *stack) waitForReady(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()

	objects := map[string]conditionedObject{
		"HypervisorCluster":         &v1alpha1.HypervisorCluster{},
		"HypervisorMachineTemplate": &v1alpha1.HypervisorMachineTemplate{},
	}
	if !s.options.CompareWarm { // waitForWarmMachines waits for these pools
		objects["RunnerPool"] = &v1alpha1.RunnerPool{}
	}

	ticker := s.clock.NewTicker(pollInterval)
	defer ticker.Stop()

	for {
		err := s.checkReady(ctx, objects)
		if err == nil {
			return "", nil
		}

		if !errors.Is(err, errNotReady) {
			return "", err
		}

		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case process := <-s.exitedProcesses:
			return "", &processExitError{process: process}
		case <-ticker.C():
		}
	}
}

func (s *stack) checkReady(ctx context.Context, objects map[string]conditionedObject) error {
	var errs []error

	for kind, obj := range objects {
		key := client.ObjectKey{Name: objectName}
		if kind != "HypervisorCluster" {
			key.Namespace = namespace
		}

		if err := s.client.Get(ctx, key, obj); err != nil {
			return fmt.Errorf("get %s %s: %w", kind, key, errors.Join(err, notReadyIfDone(ctx)))
		}

		if text := notReadyMessage(obj); text != "" {
			errs = append(errs, fmt.Errorf("%s %s is %w: %s", kind, objectName, errNotReady, text))
		}
	}

	return errors.Join(errs...)
}

// notReadyIfDone returns errNotReady if ctx is done. waitForReady then reports the cause of ctx and not
// only the call that was canceled.
func notReadyIfDone(ctx context.Context) error {
	if ctx.Err() != nil {
		return errNotReady
	}

	return nil
}

// notReadyMessage returns the reason and message of the condition Ready, or an empty string if the
// condition is True for the current generation.
func notReadyMessage(obj conditionedObject) string {
	ready := meta.FindStatusCondition(*obj.StatusConditions(), v1alpha1.ConditionReady)

	switch {
	case ready == nil:
		return "the operator has not reconciled the object yet"
	case ready.ObservedGeneration < obj.GetGeneration():
		return "the operator has not reconciled the last change of the object yet"
	case ready.Status != metav1.ConditionTrue:
		return strings.TrimSuffix(ready.Reason+": "+ready.Message, ": ")
	default:
		return ""
	}
}
