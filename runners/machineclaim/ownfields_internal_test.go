// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// TestOwnFields checks that a message names the fields of the object that a person can change.
func TestOwnFields(t *testing.T) {
	t.Parallel()

	const (
		url      = "the url in workload.config.gitlab uses plain http: use https"
		own      = "the url in spec.workloadConfig.config.gitlab uses plain http: use https"
		recreate = "; a MachineClaim cannot be changed: delete it and create a new one"
	)

	tests := map[string]struct {
		pool          string
		isDeleted     bool
		message, want string
	}{
		"of a pool":             {pool: "linux", message: url, want: url},
		"without a pool":        {message: url, want: own + recreate},
		"type":                  {message: "set workload.type to x", want: "set spec.workloadConfig.type to x" + recreate},
		"field of the template": {message: "set bootstrap.config.github", want: "set bootstrap.config.github"},
		"being deleted":         {isDeleted: true, message: url, want: own},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{}
			if tt.pool != "" {
				claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: tt.pool}
			}

			if tt.isDeleted {
				claim.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
			}

			got := nameOwnFields(claim, step.Stall("ConfigInvalid", tt.message))
			if got.Message() != tt.want || got.Reason() != "ConfigInvalid" || !got.IsStalled() {
				t.Errorf("%s, want the message %q", got, tt.want)
			}
		})
	}
}
