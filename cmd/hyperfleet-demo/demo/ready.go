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
	// readyTimeout bounds the wait for cluster, template and pool.
	readyTimeout = time.Minute
	// pollInterval is how often they are looked at, and what is left after the jobs.
	pollInterval = 100 * time.Millisecond
	// jobsInterval is how often everybody is asked while jobs run: the times of jobs are
	// the simulator's own, and the processor is for who is measured.
	jobsInterval = 300 * time.Millisecond
)

// conditioned is an object with conditions.
type conditioned interface {
	client.Object
	StatusConditions() *[]metav1.Condition
}

// waitReady waits until cluster, template and pool say they are Ready.
func (s *stack) waitReady(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()

	objects := map[string]conditioned{
		"HypervisorCluster":         &v1alpha1.HypervisorCluster{},
		"HypervisorMachineTemplate": &v1alpha1.HypervisorMachineTemplate{},
	}
	if !s.options.CompareWarm { // which waits for more than Ready
		objects["RunnerPool"] = &v1alpha1.RunnerPool{}
	}

	ticker := s.clock.NewTicker(pollInterval)
	defer ticker.Stop()

	for {
		err := s.allReady(ctx, objects)
		if err == nil {
			return "", nil
		}

		if !errors.Is(err, errNotReady) {
			return "", err
		}

		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case process := <-s.ended:
			return "", &endedError{process: process}
		case <-ticker.C():
		}
	}
}

func (s *stack) allReady(ctx context.Context, objects map[string]conditioned) error {
	var errs []error

	for kind, obj := range objects {
		key := client.ObjectKey{Name: objectName}
		if kind != "HypervisorCluster" {
			key.Namespace = namespace
		}

		if err := s.client.Get(ctx, key, obj); err != nil {
			return fmt.Errorf("get %s %s: %w", kind, key, errors.Join(err, notReadyIf(ctx)))
		}

		if text := whyNotReady(obj); text != "" {
			errs = append(errs, fmt.Errorf("%s %s is %w: %s", kind, objectName, errNotReady, text))
		}
	}

	return errors.Join(errs...)
}

// notReadyIf lets a call that the end of the wait cut off end the wait, and not be the
// reason that is told.
func notReadyIf(ctx context.Context) error {
	if ctx.Err() != nil {
		return errNotReady
	}

	return nil
}

// whyNotReady gives the words of the condition Ready, or nothing when it is True.
func whyNotReady(obj conditioned) string {
	ready := meta.FindStatusCondition(*obj.StatusConditions(), v1alpha1.ConditionReady)

	switch {
	case ready == nil:
		return "the operator has not looked at it yet"
	case ready.ObservedGeneration < obj.GetGeneration():
		return "the operator has not looked at its last change yet"
	case ready.Status != metav1.ConditionTrue:
		return strings.TrimSuffix(ready.Reason+": "+ready.Message, ": ")
	default:
		return ""
	}
}
