// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// nameOwnFields returns a result whose message names the fields of a claim without a pool. The messages of the CI
// platforms name the fields of a RunnerPool, because a platform does not know for whom it is called.
func nameOwnFields(claim *v1alpha1.MachineClaim, result step.Result) step.Result {
	if claim.PoolName() != "" {
		return result
	}

	message := strings.NewReplacer(
		"workload.config", "spec.workloadConfig.config", "workload.type", "spec.workloadConfig.type",
	).Replace(result.Message())
	if message == result.Message() {
		return result
	}

	if claim.DeletionTimestamp.IsZero() {
		message += "; a MachineClaim cannot be changed: delete it and create a new one"
	}

	return result.WithReason(result.Reason(), message)
}
